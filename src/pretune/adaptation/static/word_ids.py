"""Texts as word ids, the training data of static vectors."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError, UsageError
from pretune.data.prepared_data import PreparedData
from pretune.inference.word_vectors import split_words
from pretune.text.tokenizer import Tokenizer


def read_shard_texts(data: str | os.PathLike[str], split: str = "train") -> Iterator[str]:
    """Yield the documents of prepared data as texts, decoded with its tokenizer."""
    prepared_data = PreparedData.open(data)
    shards, tokenizer = prepared_data.open_shards(split), Tokenizer.load(prepared_data.tokenizer)
    document_offsets = shards.documents
    for start, stop in zip(document_offsets[:-1].tolist(), document_offsets[1:].tolist(), strict=True):
        yield tokenizer.decode(shards.read_tokens(start, stop), special=False)


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
