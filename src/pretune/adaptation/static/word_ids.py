"""Texts as numbered words: what static vectors are trained on and looked up with."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError, UsageError
from pretune.data.prepare.prepared_data import Data
from pretune.inference.word_vectors import words_of
from pretune.text.tokenizer import Tokenizer


def shard_texts(data: str | os.PathLike[str], split: str = "train") -> Iterator[str]:
    """The documents of prepared data as texts again, by the tokenizer beside them."""
    opened = Data.open(data)
    shards, tokenizer = opened.shards(split), Tokenizer.load(opened.tokenizer)
    edges = shards.documents
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield tokenizer.decode(shards.tokens(start, stop), special=False)


@dataclass(frozen=True, slots=True)
class Words:
    """Words by falling frequency, and texts as their numbers laid end to end; rarer words are left out of the texts."""

    words: tuple[str, ...]
    counts: NDArray[np.int64]  # of each word, in the texts
    ids: NDArray[np.int64]  # [N]
    text: NDArray[np.int64]  # [N] the number of the text that a word is in
    read: int  # words in the texts, the rare ones as well

    @classmethod
    def of(cls, texts: Iterable[str] | Iterable[list[str]], *, least: int = 5, most: int | None = None) -> "Words":
        """Count and number the words of texts (or of lists of words); words met fewer than `least` times are left out.

        With `most` only so many are kept, the most frequent; equally frequent words are in alphabetical order.
        """
        if isinstance(texts, str):
            raise UsageError("static vectors take a list of texts, found one text; put it into a list")
        numbers: dict[str, int] = {}
        parts: list[NDArray[np.int32]] = []
        for text in texts:
            found = words_of(text) if isinstance(text, str) else text
            parts.append(np.array([numbers.setdefault(word, len(numbers)) for word in found], dtype=np.int32))
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        flat = np.concatenate([np.empty(0, dtype=np.int32), *parts])
        counts = np.bincount(flat, minlength=len(numbers))
        names = list(numbers)
        kept = sorted((i for i in range(len(names)) if counts[i] >= least), key=lambda i: (-counts[i], names[i]))[:most]
        if not kept:
            raise DataError(f"no word is met {least} times in {len(flat)} words; give more text, or lower `least`")
        place = np.full(len(names), -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        ids, owner = place[flat], np.repeat(np.arange(len(parts)), lengths)
        known = ids >= 0
        return cls(tuple(names[i] for i in kept), counts[kept], ids[known], owner[known], len(flat))

    def __len__(self) -> int:
        return len(self.words)
