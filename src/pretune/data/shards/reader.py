"""Reader of token shards: all shards of a split as one memory-mapped sequence of tokens, validated on opening."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError, suggest
from pretune.core.io import resolve_inside
from pretune.data.sequences import Bools, Ints, spread
from pretune.data.shards.files import INDEX_FILE, REMEDY, DataIndex, ShardFacts, open_npy, read_index


class Shards:
    """A split of prepared data, read-only. Pickling sends only the path; the other process maps the files again.

    Positions count tokens from the start of the first shard to the end of the last.
    """

    def __init__(self, directory: Path, split: str, index: DataIndex, *, verify: bool = True) -> None:
        self.directory, self.split, self.index = directory, split, index
        folder = resolve_inside(directory, split, DataError, directory / INDEX_FILE)
        self._parts = [_MappedShard(folder, facts, index.dtype) for facts in index.splits[split].shards]
        self._starts = np.cumsum([0, *(part.facts.tokens for part in self._parts)], dtype=np.int64)
        if verify:
            for part in self._parts:
                part.verify(len(index.sources))

    @classmethod
    def open(cls, directory: str | Path, split: str = "train", *, verify: bool = True) -> "Shards":
        """Open a split of prepared data.

        Args:
            directory: Directory of prepared data.
            split: Name of the split.
            verify: Check the boundaries too. Types, lengths and sizes of files are always checked.

        Raises:
            DataError: The directory is not prepared data, has no such split, or a file is damaged.
        """
        folder = Path(directory)
        index = read_index(folder)
        if split not in index.splits:
            names = ", ".join(index.splits) or "none"
            raise DataError(
                f"{folder / INDEX_FILE}: no split '{split}'{suggest(split, index.splits)} (splits: {names})"
            )
        return cls(folder, split, index, verify=verify)

    def __reduce__(self) -> tuple[Callable[..., "Shards"], tuple[Any, ...]]:
        return functools.partial(Shards.open, verify=False), (self.directory, self.split)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return int(self._starts[-1])

    @functools.cached_property
    def documents(self) -> Ints:
        """Start of each document, and the end of the last [D + 1]."""
        parts = [part.documents[1:] + start for part, start in zip(self._parts, self._starts, strict=False)]
        return np.concatenate([np.zeros(1, dtype=np.int64), *parts])

    @functools.cached_property
    def sentences(self) -> Ints:
        """Start of each sentence [S]; the first token of every document starts one."""
        if len(self._parts) == 1:
            return self._parts[0].sentences
        parts = [part.sentences + start for part, start in zip(self._parts, self._starts, strict=False)]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    @functools.cached_property
    def sources(self) -> NDArray[np.uint16]:
        """Source number of each document [D], an index into `index.sources`."""
        return np.concatenate([np.empty(0, dtype=np.uint16), *(part.sources for part in self._parts)])

    @property
    def pairs(self) -> int:
        """Number of documents with two sides."""
        return self.index.splits[self.split].pairs

    @functools.cached_property
    def sides(self) -> Ints:
        """Number of tokens of the first side of each document [D], 0 for documents with one side."""
        return np.concatenate([np.empty(0, dtype=np.int64), *(part.sides for part in self._parts)])

    def read_tokens(self, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """Return the tokens from `start` to `stop`; a view, not a copy, if the range is in one shard."""
        cuts = [
            part.tokens[max(start - first, 0) : max(stop - first, 0)]
            for part, first in zip(self._parts, self._starts, strict=False)
            if start < first + part.facts.tokens and stop > first
        ]
        return self._check(cuts[0] if len(cuts) == 1 else np.concatenate([np.empty(0, dtype=self.index.dtype), *cuts]))

    def _check(self, tokens: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
        """Return tokens; raise a DataError if one is not in the vocabulary."""
        largest = int(tokens.max(initial=0))
        if largest >= self.index.vocab > 0:
            place, limit = self.directory / self.split, f"{self.index.vocab:,}"
            raise DataError(f"{place}: token {largest} is not in the vocabulary of {limit}; {REMEDY}")
        return tokens

    def read_word_starts(self, start: int, stop: int) -> Bools:
        """Return True for each token from `start` to `stop` that starts a word."""
        return self.take_words(np.array([start]), np.array([stop - start]))

    def take(self, starts: Ints, lengths: Ints) -> NDArray[np.unsignedinteger]:
        """Return the concatenated tokens of ranges, given their starts and lengths."""
        return self._check(self._gather(starts, lengths, _MappedShard.take_tokens, np.dtype(self.index.dtype)))

    def take_words(self, starts: Ints, lengths: Ints) -> Bools:
        """Return True for each token of the concatenated ranges that starts a word."""
        return self._gather(starts, lengths, _MappedShard.take_words, np.dtype(bool))

    def _gather(
        self, starts: Ints, lengths: Ints, take: Callable[["_MappedShard", Ints], NDArray[Any]], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Return the concatenated values of ranges; `take` reads values at positions of one shard."""
        index = spread(starts, lengths)
        if len(self._parts) == 1:
            return take(self._parts[0], index)
        first, last = (np.searchsorted(self._starts, edge, side="right") - 1 for edge in (starts, starts + lengths - 1))
        if (first == last)[lengths > 0].all():  # true for ranges inside documents; saves a search per token
            shard = np.repeat(first, lengths)
        else:
            shard = np.searchsorted(self._starts, index, side="right") - 1
        out = np.empty(len(index), dtype)
        for number in np.flatnonzero(np.bincount(shard)):
            in_shard = shard == number
            out[in_shard] = take(self._parts[number], index[in_shard] - self._starts[number])
        return out


class _MappedShard:
    """The memory-mapped files of a shard."""

    def __init__(self, folder: Path, facts: ShardFacts, dtype: str) -> None:
        self.facts, self.folder = facts, folder
        self.tokens: NDArray[np.unsignedinteger] = self._open("tokens", dtype, facts.tokens)
        self.documents: Ints = self._open("documents", "<i8", facts.documents + 1)
        self.sentences: Ints = self._open("sentences", "<i8", facts.sentences)
        self.words: NDArray[np.uint8] = self._open("words", "|u1", -(-facts.tokens // 8))
        self.sources: NDArray[np.uint16] = self._open("sources", "<u2", facts.documents)
        no_sides = np.zeros(facts.documents, dtype=np.int64)
        self.sides: Ints = self._open("sides", "<i8", facts.documents) if facts.pairs else no_sides

    def take_tokens(self, index: Ints) -> NDArray[np.unsignedinteger]:
        return self.tokens[index]

    def take_words(self, index: Ints) -> Bools:
        return np.asarray((self.words[index >> 3] >> (7 - (index & 7)).astype(np.uint8)) & 1, dtype=bool)

    def verify(self, sources: int) -> None:
        """Raise a DataError if the boundaries are inconsistent; `sources` is the number of sources. Reads no tokens."""
        total = self.facts.tokens
        if self.documents[0] != 0 or self.documents[-1] != total or (np.diff(self.documents) < 0).any():
            raise self._build_error("documents", f"the document boundaries do not increase from 0 to {total}")
        if (np.diff(self.sentences) <= 0).any():
            raise self._build_error("sentences", "the sentence starts do not increase")
        if total and (not len(self.sentences) or self.sentences[0] != 0 or self.sentences[-1] >= total):
            raise self._build_error("sentences", f"the sentence starts are not from 0 to below {total}")
        first_tokens = self.documents[:-1][np.diff(self.documents) > 0]
        if not np.isin(first_tokens, self.sentences, assume_unique=True).all():
            raise self._build_error("sentences", "the first token of a document does not start a sentence")
        if (self.sides > 0).sum() != self.facts.pairs or (self.sides < 0).any():
            raise self._build_error("sides", f"the number of pairs is not {self.facts.pairs} as in {INDEX_FILE}")
        is_pair = self.sides > 0
        second_sides = (self.documents[:-1] + self.sides)[is_pair]
        if (second_sides >= self.documents[1:][is_pair]).any() or not np.isin(second_sides, self.sentences).all():
            raise self._build_error("sides", "a second side does not start a sentence of its document")
        if len(self.sources) and self.sources.max() >= sources:
            raise self._build_error(
                "sources", f"source {self.sources.max()} is not one of the {sources} in {INDEX_FILE}"
            )

    def _open(self, part: str, dtype: str, count: int) -> NDArray[Any]:
        path = self._get_path(part)
        return open_npy(resolve_inside(self.folder, path.name, DataError, path), dtype, count)

    def _get_path(self, part: str) -> Path:
        return self.folder / f"{self.facts.name}.{part}.npy"

    def _build_error(self, part: str, problem: str) -> DataError:
        return DataError(f"{self._get_path(part)}: {problem}; {REMEDY}")
