"""Writing shards: documents come in order, tokens go straight to disk, and a new shard begins when one is full."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pretune.core.errors import DataError, UsageError
from pretune.core.io import translate_write_errors
from pretune.data.shards.index import DTYPES, ShardFacts
from pretune.data.shards.npy import NpyWriter

SHARD_TOKENS = 2**27
"""Tokens after which a shard ends (with the document that reaches it)."""

Ints = NDArray[np.int64]


class ShardWriter:
    """Writes the shards of one split into a directory that the caller publishes.

    What is in memory is what one call of `add` was given. Where shards begin depends on the documents only, not on how
    they were spread over calls.
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
        if dtype not in DTYPES:
            raise UsageError(f"tokens cannot be stored as {dtype!r}; allowed: {', '.join(DTYPES)}")
        self.directory, self.dtype, self.max_tokens, self.has_sides = Path(directory), dtype, max_tokens, has_sides
        self.vocab = min(vocab or 2**32, np.iinfo(dtype).max + 1)
        self.shards: list[ShardFacts] = []
        self._shard: _ShardFiles | None = None
        self._is_unfinished = False  # the last document goes on in the next call
        self._has_tokens = False  # and has tokens already
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
        """Add whole documents: their tokens one after another, and where each starts and the last ends.

        `words` marks the tokens that start a word; `sentences` are the positions in `tokens` at which sentences start,
        those at the start of a document or of a second side being implied. `sides` has the tokens of the first side of
        each document with two, 0 for others; it needs a writer with `has_sides`. With `is_unfinished` the last document
        continues in the next call.
        """
        ids = np.asarray(tokens)
        ends = np.asarray([len(ids)]) if offsets is None else self._parse_ends(np.asarray(offsets), len(ids))
        starts = np.asarray(words, dtype=bool)
        if len(starts) != len(ids):
            raise UsageError(f"got word starts for {len(starts)} of {len(ids)} tokens")
        if len(ids) and not (ids.dtype.kind in "ui" and ids.min() >= 0 and ids.max() < self.vocab):
            raise DataError(
                f"token {ids.max()} is not in a vocabulary of {self.vocab}; use the tokenizer the data is for"
            )
        if not len(ends):
            return
        positions = np.asarray(sentences, dtype=np.int64)
        if len(positions) and not (positions[0] >= 0 and positions[-1] < len(ids) and (np.diff(positions) > 0).all()):
            raise UsageError(f"sentence starts must ascend from 0 and stay below {len(ids)}")
        begins = np.concatenate(([0], ends[:-1]))
        firsts = begins < ends  # an empty document has no first token
        firsts[0] &= not self._has_tokens
        first = self._check_sides(sides, begins, ends)
        positions = np.union1d(positions, np.concatenate((begins[firsts], (begins + first)[first > 0])))
        origins = np.broadcast_to(np.asarray(sources, dtype=np.int64), ends.shape)
        if len(origins) and not (origins.min() >= 0 and origins.max() < 2**16):
            raise UsageError("a source is a number from 0 to 65535")
        self._write(ids, ends, starts, positions, np.stack((origins, first)), is_unfinished)
        self._has_tokens = is_unfinished and bool(begins[-1] < ends[-1] or (self._has_tokens and len(ends) == 1))

    def close(self) -> tuple[ShardFacts, ...]:
        """Complete the last shard, and tell what was written."""
        if self._is_unfinished:
            raise UsageError("the last document was said to go on, but nothing followed")
        self._finish_shard()
        return tuple(self.shards)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._shard is not None:
            self._shard.abandon()

    def _write(
        self, ids: Ints, ends: Ints, words: NDArray[np.bool_], sentences: Ints, columns: Ints, is_unfinished: bool
    ) -> None:
        """Spread documents over shards; in this call, `at` tokens and `done` documents are written.

        The columns [2, D] are the sources and first sides of documents.
        """
        token = document = 0
        while document < len(ends):
            if self._shard is None:
                self._shard = _ShardFiles(self.directory, f"{len(self.shards):05}", self.dtype, self.has_sides)
            complete = len(ends) - is_unfinished  # documents that end in this call
            last = document + int(
                np.searchsorted(ends[document:complete], token + self.max_tokens - self._shard.tokens)
            )
            full = last < complete
            stop = last + 1 if full else len(ends)
            end = int(ends[stop - 1])
            first, stop_sentence = np.searchsorted(sentences, [token, end])
            self._shard.add(
                ids[token:end],
                ends[document : stop if full else max(document, complete)] - token,
                words[token:end],
                sentences[first:stop_sentence] - token,
                *columns[:, document + int(self._is_unfinished) : stop],
            )
            self._is_unfinished = is_unfinished and not full
            token, document = end, stop
            if full:
                self._finish_shard()

    def _finish_shard(self) -> None:
        if self._shard is not None:
            self.shards.append(self._shard.close())
            self._shard = None

    def _check_sides(self, sides: ArrayLike | None, begins: Ints, ends: Ints) -> Ints:
        if sides is None:
            return np.zeros_like(ends)
        first = np.asarray(sides, dtype=np.int64)
        good = self.has_sides and first.shape == ends.shape
        if not good or (first < 0).any() or (first >= np.maximum(ends - begins, 1)).any():
            raise UsageError("sides are for a writer that was told of them; a first has fewer tokens than its document")
        return first

    def _parse_ends(self, offsets: NDArray[np.generic], tokens: int) -> Ints:
        good = offsets.ndim == 1 and len(offsets) and offsets.dtype.kind in "ui"
        if not good or offsets[0] != 0 or offsets[-1] != tokens or (np.diff(offsets.astype(np.int64)) < 0).any():
            raise UsageError(f"offsets of documents must ascend from 0 to the {tokens} tokens")
        return offsets[1:].astype(np.int64)


class _ShardFiles:
    """The files of one shard while they are written."""

    def __init__(self, directory: Path, name: str, dtype: str, has_sides: bool) -> None:
        self.name, self.tokens = name, 0
        kinds = {"tokens": dtype, "documents": "<i8", "sentences": "<i8", "words": "|u1", "sources": "<u2"}
        kinds |= {"sides": "<i8"} if has_sides else {}
        self.pairs = 0
        self._files = {part: NpyWriter(directory / f"{name}.{part}.npy", kind) for part, kind in kinds.items()}
        self._files["documents"].append(np.zeros(1))
        self._bits = np.empty(0, dtype=bool)  # word starts that do not fill a byte yet

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
