"""Texts as numbered words: what static vectors are trained on and looked up with."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError, UsageError
from pretune.data.prepare.prepared_data import PreparedData
from pretune.inference.word_vectors import split_words
from pretune.text.tokenizer import Tokenizer


def read_shard_texts(data: str | os.PathLike[str], split: str = "train") -> Iterator[str]:
    """The documents of prepared data as texts again, by the tokenizer beside them."""
    opened = PreparedData.open(data)
    shards, tokenizer = opened.open_shards(split), Tokenizer.load(opened.tokenizer)
    edges = shards.documents
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield tokenizer.decode(shards.read_tokens(start, stop), special=False)


@dataclass(frozen=True, slots=True)
class WordCorpus:
    """Words by falling frequency, and texts as their numbers laid end to end; rarer words are left out of the texts."""

    words: tuple[str, ...]
    counts: NDArray[np.int64]  # of each word, in the texts
    ids: NDArray[np.int64]  # [N]
    text_ids: NDArray[np.int64]  # [N] the number of the text that a word is in
    total: int  # words in the texts, the rare ones as well

    @classmethod
    def from_texts(
        cls, texts: Iterable[str] | Iterable[list[str]], *, min_count: int = 5, max_words: int | None = None
    ) -> "WordCorpus":
        """Count and number the words of texts (or of lists of words); words met fewer than `least` times are left out.

        With `most` only so many are kept, the most frequent; equally frequent words are in alphabetical order.
        """
        if isinstance(texts, str):
            raise UsageError("static vectors take a list of texts, found one text; put it into a list")
        numbers: dict[str, int] = {}
        parts: list[NDArray[np.int32]] = []
        for text in texts:
            found = split_words(text) if isinstance(text, str) else text
            parts.append(np.array([numbers.setdefault(word, len(numbers)) for word in found], dtype=np.int32))
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        flat = np.concatenate([np.empty(0, dtype=np.int32), *parts])
        counts = np.bincount(flat, minlength=len(numbers))
        names = list(numbers)
        kept = sorted((i for i in range(len(names)) if counts[i] >= min_count), key=lambda i: (-counts[i], names[i]))[
            :max_words
        ]
        if not kept:
            raise DataError(f"no word is met {min_count} times in {len(flat)} words; give more text, or lower `least`")
        place = np.full(len(names), -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        ids, owner = place[flat], np.repeat(np.arange(len(parts)), lengths)
        known = ids >= 0
        return cls(tuple(names[i] for i in kept), counts[kept], ids[known], owner[known], len(flat))

    def __len__(self) -> int:
        return len(self.words)
