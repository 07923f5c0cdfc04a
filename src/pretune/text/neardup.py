"""Near duplicates: MinHash (Broder, 1997) with locality-sensitive hashing (Indyk and Motwani, 1998).

A text is the set of its word 5-grams. The share of 128 random hash functions whose minimum agrees between two texts
estimates their Jaccard similarity, with a standard error of 0.035 at 0.8. The minima are grouped into bands; texts that
agree in an entire band are compared, and one that agrees with an earlier text in at least `threshold` of all values is
a duplicate. At the threshold half of the pairs are found, at 0.1 above it nearly all (tests/text/test_neardup.py).

Memory: 256 bytes of signature and 20 to 40 per band, so about 0.9 KB per document at 0.8. Speed: 3 MB/s for short
documents (1 KB), 8 MB/s for long ones.
"""

import re
import zlib
from array import array

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.core.seed import mix_array
from pretune.text.language import UNSPACED_LETTERS

_SEED = 0x6E65_6172  # of the hash functions; changing it changes signatures
_BLOCK = 1024  # shingles hashed at a time
_RECALL = 0.98  # minimum probability that a pair at the threshold shares a band
_NO_SPACES = re.compile(f"[{UNSPACED_LETTERS}]")
_TO_SPACES = bytes(32 if 32 < byte < 128 and not chr(byte).isalnum() else byte for byte in range(256))


class NearDuplicates:
    """Index of texts that detects whether a new text is nearly equal to an indexed one."""

    def __init__(self, threshold: float = 0.8, *, permutations: int = 128, ngram: int = 5) -> None:
        if not 0 < threshold <= 1:
            raise UsageError(f"the threshold of near duplicates must be > 0 and <= 1, got {threshold}")
        self.threshold = threshold
        self.bands, self.rows = choose_bands(threshold, permutations)
        self._ngram = ngram
        numbers = mix_array((_SEED,), np.arange(3 * permutations, dtype=np.uint64)) | np.uint64(1)
        self._factor, self._shift = numbers[: 2 * permutations].astype(np.uint32).reshape(2, -1)
        self._band_factor = numbers[2 * permutations :][: self.bands * self.rows].reshape(self.bands, self.rows)
        self._signatures = np.zeros((1024, permutations), dtype=np.uint16)
        self._count = 0
        self._buckets = _Buckets()

    @property
    def bytes(self) -> int:
        """Memory of the index in bytes."""
        return self._signatures.nbytes + self._buckets.bytes

    def compute_signature(self, text: str) -> NDArray[np.uint32]:
        """Return the minima of all hash functions over the word n-grams; a pure function, safe in any process."""
        hashes = np.array([*map(zlib.crc32, split_words(text))] or [0], dtype=np.uint64)
        n = min(self._ngram, len(hashes))
        runs = np.zeros(len(hashes) - n + 1, dtype=np.uint64)
        for place in range(n):
            runs = runs * np.uint64(0x9E3779B97F4A7C15) + hashes[place : place + len(runs)]
        shingles = np.unique(mix_array((_SEED, n), runs).astype(np.uint32))
        minima = np.full(len(self._factor), 2**32 - 1, dtype=np.uint32)
        for start in range(0, len(shingles), _BLOCK):
            block = shingles[start : start + _BLOCK, None] * self._factor  # [shingles, permutations], modulo 2**32
            block += self._shift
            np.minimum(minima, block.min(axis=0), out=minima)
        return minima

    def add(self, signature: NDArray[np.uint32]) -> bool:
        """Return whether an indexed text is near this one; if not, add it to the index."""
        keys = self._band_keys(signature)
        small = signature.astype(np.uint16)  # enough to compare: unequal values collide once in 65,536
        candidates = sorted({self._buckets.get(key) for key in keys} - {-1})
        if candidates and (self._signatures[candidates] == small).mean(axis=1).max() >= self.threshold:
            return True
        if self._count == len(self._signatures):
            self._signatures = np.concatenate([self._signatures, np.zeros_like(self._signatures)])
        self._signatures[self._count] = small
        for key in keys:
            self._buckets.put(key, self._count)
        self._count += 1
        return False

    def _band_keys(self, signature: NDArray[np.uint32]) -> list[int]:
        """Return one key per band: a hash of its values and its position."""
        rows = signature[: self.bands * self.rows].reshape(self.bands, self.rows).astype(np.uint64)
        return [*mix_array((_SEED,), (rows * self._band_factor).sum(axis=1)).tolist()]


def split_words(text: str) -> list[bytes]:
    """Return the words of a text in lower case; its characters in scripts without spaces."""
    lower = text.lower()
    if not text.isascii():
        lower = _NO_SPACES.sub(r" \g<0> ", lower)
    return lower.encode("utf-8", "surrogatepass").translate(_TO_SPACES).split()


def choose_bands(threshold: float, permutations: int) -> tuple[int, int]:
    """Return the number of bands and of rows: the longest rows that miss at most 2 % of the pairs at the threshold.

    >>> choose_bands(0.8, 128)
    (18, 7)
    """
    for rows in range(permutations, 1, -1):
        count = permutations // rows
        if 1 - (1 - threshold**rows) ** count >= _RECALL:
            return count, rows
    return permutations, 1


class _Buckets:
    """Hash table from 64-bit keys to integers in two flat arrays: 12 bytes per slot, where a dict needs 100."""

    def __init__(self, slots: int = 2**12) -> None:
        self._keys = array("Q", bytes(8 * slots))
        self._values = array("i", [-1]) * slots
        self._size = 0

    @property
    def bytes(self) -> int:
        return len(self._keys) * (self._keys.itemsize + self._values.itemsize)

    def get(self, key: int) -> int:
        """Return the value of a key, or -1."""
        return self._values[self._find_slot(key)]

    def put(self, key: int, value: int) -> None:
        """Set the value of a new key; existing keys are unchanged."""
        slot = self._find_slot(key)
        if self._values[slot] < 0:
            self._keys[slot], self._values[slot] = key, value
            self._size += 1
            if 5 * self._size > 3 * len(self._keys):
                self._grow()

    def _find_slot(self, key: int) -> int:
        """Return the slot of a key, occupied or free."""
        keys, values, mask = self._keys, self._values, len(self._keys) - 1
        slot = key & mask
        while values[slot] >= 0 and keys[slot] != key:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        keys, values = self._keys, self._values
        self._keys = array("Q", bytes(16 * len(keys)))
        self._values = array("i", [-1]) * (2 * len(keys))
        for key, value in zip(keys, values, strict=True):
            if value >= 0:
                slot = self._find_slot(key)
                self._keys[slot], self._values[slot] = key, value
