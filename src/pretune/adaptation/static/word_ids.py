"""Texts as word ids, the training data of static vectors."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError, UsageError
from pretune.inference.word_vectors import WordVectors, split_words


@dataclass(frozen=True, slots=True)
class WordCorpus:
    """Words by descending frequency, and texts as concatenated word ids; rare words are dropped."""

    words: tuple[str, ...]
    counts: NDArray[np.int64]  # occurrences of each word
    ids: NDArray[np.int64]  # [N]
    text_ids: NDArray[np.int64]  # [N] number of the text of each word
    total: int  # words in the texts, including rare ones

    @classmethod
    def from_texts(
        cls, texts: Iterable[str] | Iterable[list[str]], *, min_count: int = 5, max_words: int | None = None
    ) -> "WordCorpus":
        """Count and number the words of texts (or of lists of words); those with fewer than `min_count` are dropped.

        At most `max_words` are kept, the most frequent; equally frequent words are in alphabetical order.
        """
        if isinstance(texts, str):
            raise UsageError("static vectors need a list of texts, got a single text; put it into a list")
        numbers: dict[str, int] = {}
        parts: list[NDArray[np.int32]] = []
        for text in texts:
            words = split_words(text) if isinstance(text, str) else text
            parts.append(np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int32))
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        flat = np.concatenate([np.empty(0, dtype=np.int32), *parts])
        counts = np.bincount(flat, minlength=len(numbers))
        names = list(numbers)
        kept_ids = sorted(
            (i for i in range(len(names)) if counts[i] >= min_count), key=lambda i: (-counts[i], names[i])
        )[:max_words]
        if not kept_ids:
            raise DataError(f"no word occurs {min_count} times in {len(flat)} words; add text, or lower `min_count`")
        new_ids = np.full(len(names), -1, dtype=np.int64)
        new_ids[kept_ids] = np.arange(len(kept_ids))
        ids, owner = new_ids[flat], np.repeat(np.arange(len(parts)), lengths)
        is_kept = ids >= 0
        return cls(tuple(names[i] for i in kept_ids), counts[kept_ids], ids[is_kept], owner[is_kept], len(flat))

    def __len__(self) -> int:
        return len(self.words)


class VectorTrainer:
    """Base class of methods for static vectors."""

    min_count: int
    max_words: int | None

    def train(self, texts: Iterable[str] | Iterable[list[str]], *, seed: int = 0) -> WordVectors:
        """Train vectors on texts, or on lists of words. The result is reproducible for seed, texts and threads."""
        return self.fit(WordCorpus.from_texts(texts, min_count=self.min_count, max_words=self.max_words), seed=seed)

    def fit(self, words: WordCorpus, *, seed: int = 0) -> WordVectors:
        """Train vectors on a corpus of word ids."""
        raise NotImplementedError
