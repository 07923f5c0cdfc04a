"""Writer of token shards: documents are added in order, written immediately, and divided into shards by size."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pretune.core.errors import DataError, UsageError
from pretune.core.io import translate_write_errors
from pretune.data.shards.files import AtomicWriter, NpyWriter, ShardFacts

SHARD_TOKENS = 2**27
"""Number of tokens at which a shard is full; it ends with the document that reaches it."""

Ints = NDArray[np.int64]


class ShardWriter(AtomicWriter):
    """Writer of the shards of one split, for a directory that the caller publishes.

    Only the arrays of the current `add` call are in memory. The shards depend on the documents, not on their
    distribution over calls. `shards` lists the complete shards.

    Args:
        directory: Directory of the split; created if absent.
        dtype: Type of the stored token ids, uint16 or uint32.
        vocab: Size of the vocabulary, to reject invalid token ids; None for the range of `dtype`.
        max_tokens: Number of tokens at which a shard is full.
        has_sides: Also store the sides of text pairs.
    """

    def __init__(
        self,
        directory: Path,
        dtype: str,
        *,
        vocab: int | None = None,
        max_tokens: int = SHARD_TOKENS,
        has_sides: bool = False,
    ) -> None:
        if dtype not in ("uint16", "uint32"):
            raise UsageError(f"tokens cannot be stored as {dtype!r}; allowed: uint16, uint32")
        self.directory, self.dtype, self.max_tokens, self.has_sides = Path(directory), dtype, max_tokens, has_sides
        self.vocab = min(vocab or 2**32, np.iinfo(dtype).max + 1)
        self.shards: list[ShardFacts] = []
        self._shard: _ShardFiles | None = None
        self._is_unfinished = False  # the last document continues in the next call
        self._has_tokens = False  # the unfinished document already has tokens
        with translate_write_errors(self.directory):
            self.directory.mkdir(exist_ok=True)

    def add(
        self,
        tokens: ArrayLike,
        offsets: ArrayLike | None = None,
        *,
        words: ArrayLike,
        sentences: ArrayLike = (),
        sources: int | Sequence[int] | NDArray[np.integer] = 0,
        sides: ArrayLike | None = None,
        is_unfinished: bool = False,
    ) -> None:
        """Add documents.

        Args:
            tokens: Concatenated token ids of the documents [T].
            offsets: Start of each document, and the end of the last [D + 1]; None for one document.
            words: True for each token that starts a word [T].
            sentences: Positions in `tokens` of sentence starts; those of documents and second sides are added.
            sources: Source number of each document [D], or one for all.
            sides: Number of tokens of the first side of each document [D], 0 for documents with one side; needs a
                writer with `has_sides`.
            is_unfinished: The last document continues in the next call.

        Raises:
            UsageError: The arrays are inconsistent.
            DataError: A token id is not in the vocabulary.
        """
        ids = np.asarray(tokens)
        ends = np.asarray([len(ids)]) if offsets is None else self._parse_ends(np.asarray(offsets), len(ids))
        starts = np.asarray(words, dtype=bool)
        if len(starts) != len(ids):
            raise UsageError(f"got word starts for {len(starts)} of {len(ids)} tokens")
        if len(ids) and not (ids.dtype.kind in "ui" and ids.min() >= 0 and ids.max() < self.vocab):
            raise DataError(
                f"token {ids.max()} is not in a vocabulary of {self.vocab}; use the tokenizer with this vocabulary"
            )
        if not len(ends):
            return
        positions = np.asarray(sentences, dtype=np.int64)
        if len(positions) and not (positions[0] >= 0 and positions[-1] < len(ids) and (np.diff(positions) > 0).all()):
            raise UsageError(f"sentence starts must increase, from 0 to below {len(ids)}")
        begins = np.concatenate(([0], ends[:-1]))
        has_first_token = begins < ends  # an empty document has no first token
        has_first_token[0] &= not self._has_tokens
        first_sides = self._check_sides(sides, begins, ends)
        positions = np.union1d(
            positions, np.concatenate((begins[has_first_token], (begins + first_sides)[first_sides > 0]))
        )
        origins = np.broadcast_to(np.asarray(sources, dtype=np.int64), ends.shape)
        if len(origins) and not (origins.min() >= 0 and origins.max() < 2**16):
            raise UsageError("sources must be numbers from 0 to 65535")
        self._write(ids, ends, starts, positions, np.stack((origins, first_sides)), is_unfinished)
        self._has_tokens = is_unfinished and bool(begins[-1] < ends[-1] or (self._has_tokens and len(ends) == 1))

    def close(self) -> tuple[ShardFacts, ...]:
        """Complete the last shard, and return all shards; raise a UsageError if the last document is unfinished."""
        if self._is_unfinished:
            raise UsageError("the last document is unfinished; add the rest of it before closing the writer")
        self._finish_shard()
        return tuple(self.shards)

    def abandon(self) -> None:
        """Close the files of the open shard without completing them."""
        if self._shard is not None:
            self._shard.abandon()

    def _write(
        self, ids: Ints, ends: Ints, words: NDArray[np.bool_], sentences: Ints, columns: Ints, is_unfinished: bool
    ) -> None:
        """Divide documents into shards and write them; `columns` [2, D] has their sources and first sides."""
        token = document = 0  # numbers of tokens and documents written in this call
        while document < len(ends):
            if self._shard is None:
                self._shard = _ShardFiles(self.directory, f"{len(self.shards):05}", self.dtype, self.has_sides)
            complete = len(ends) - is_unfinished  # documents that end in this call
            last = document + int(
                np.searchsorted(ends[document:complete], token + self.max_tokens - self._shard.tokens)
            )
            is_full = last < complete
            stop = last + 1 if is_full else len(ends)
            end = int(ends[stop - 1])
            first, stop_sentence = np.searchsorted(sentences, [token, end])
            self._shard.add(
                ids[token:end],
                ends[document : stop if is_full else max(document, complete)] - token,
                words[token:end],
                sentences[first:stop_sentence] - token,
                *columns[:, document + int(self._is_unfinished) : stop],
            )
            self._is_unfinished = is_unfinished and not is_full
            token, document = end, stop
            if is_full:
                self._finish_shard()

    def _finish_shard(self) -> None:
        if self._shard is not None:
            self.shards.append(self._shard.close())
            self._shard = None

    def _check_sides(self, sides: ArrayLike | None, begins: Ints, ends: Ints) -> Ints:
        if sides is None:
            return np.zeros_like(ends)
        first = np.asarray(sides, dtype=np.int64)
        is_allowed = self.has_sides and first.shape == ends.shape
        if not is_allowed or (first < 0).any() or (first >= np.maximum(ends - begins, 1)).any():
            raise UsageError(
                "sides need a writer with has_sides=True, and one value per document, less than its number of tokens"
            )
        return first

    def _parse_ends(self, offsets: NDArray[np.generic], tokens: int) -> Ints:
        is_vector = offsets.ndim == 1 and len(offsets) and offsets.dtype.kind in "ui"
        if not is_vector or offsets[0] != 0 or offsets[-1] != tokens or (np.diff(offsets.astype(np.int64)) < 0).any():
            raise UsageError(f"offsets of documents must increase from 0 to the number of tokens, {tokens}")
        return offsets[1:].astype(np.int64)


class _ShardFiles:
    """The open files of a shard that is being written."""

    def __init__(self, directory: Path, name: str, dtype: str, has_sides: bool) -> None:
        self.name, self.tokens = name, 0
        kinds = {"tokens": dtype, "documents": "<i8", "sentences": "<i8", "words": "|u1", "sources": "<u2"}
        kinds |= {"sides": "<i8"} if has_sides else {}
        self.pairs = 0
        self._files = {part: NpyWriter(directory / f"{name}.{part}.npy", kind) for part, kind in kinds.items()}
        self._files["documents"].append(np.zeros(1))
        self._bits = np.empty(0, dtype=bool)  # word starts that do not fill a byte

    def add(self, ids: Ints, ends: Ints, words: NDArray[np.bool_], sentences: Ints, sources: Ints, sides: Ints) -> None:
        self._files["tokens"].append(ids)
        self._files["documents"].append(ends + self.tokens)
        self._files["sentences"].append(sentences + self.tokens)
        self._files["sources"].append(sources)
        if "sides" in self._files:
            self._files["sides"].append(sides)
            self.pairs += int((sides > 0).sum())
        bits = np.concatenate((self._bits, words))
        full_bits = len(bits) // 8 * 8
        self._files["words"].append(np.packbits(bits[:full_bits]))
        self._bits = bits[full_bits:]
        self.tokens += len(ids)

    def close(self) -> ShardFacts:
        self._files["words"].append(np.packbits(self._bits))
        for file in self._files.values():
            file.close()
        count = {part: file.count for part, file in self._files.items()}
        return ShardFacts(
            name=self.name,
            documents=count["documents"] - 1,
            tokens=count["tokens"],
            sentences=count["sentences"],
            pairs=self.pairs,
        )

    def abandon(self) -> None:
        for file in self._files.values():
            file.abandon()
