"""BM25 (Robertson et al., 1994), the lexical search baseline, in Lucene's variant (Kamphuis et al., 2020).


BM25(["the cat sat", "a dog"]).search(["cats"], k=1)        # scores [1, 1] and document indices [1, 1]
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError
from pretune.metrics.generation import stem

K1, B = 1.2, 0.75
"""Saturation of term frequency, and strength of length normalization."""

_WORD = re.compile(r"\w+")
SearchResult = tuple[NDArray[np.float32], NDArray[np.int64]]


def split_words(text: str, stemming: bool = True) -> list[str]:
    """Return the lowercase words of a text, stemmed by default."""
    words = _WORD.findall(text.lower())
    return [stem(word) for word in words] if stemming else words


class BM25:
    """Inverted index of documents."""

    def __init__(self, texts: Sequence[str], *, k1: float = K1, b: float = B, stemming: bool = True) -> None:
        if not texts:
            raise DataError("no documents to search in")
        self.count, self.stemming = len(texts), stemming
        term_ids: dict[str, int] = {}
        terms, documents, term_counts, sizes = list[int](), list[int](), list[int](), list[int]()
        for document, text in enumerate(texts):
            word_counts = Counter(split_words(text, stemming))
            sizes.append(sum(word_counts.values()))
            for word, count in word_counts.items():
                terms.append(term_ids.setdefault(word, len(term_ids)))
                documents.append(document)
                term_counts.append(count)
        self.term_ids = term_ids
        order = np.argsort(np.array(terms, dtype=np.int64), kind="stable")
        self.documents = np.array(documents, dtype=np.int64)[order]
        term_frequency = np.array(term_counts, dtype=np.float64)[order]
        document_frequency = np.bincount(np.array(terms, dtype=np.int64), minlength=len(term_ids))
        self.starts = np.concatenate(([0], np.cumsum(document_frequency)))
        idf = np.log(1 + (self.count - document_frequency + 0.5) / (document_frequency + 0.5))
        size = np.array(sizes, dtype=np.float64)
        length = size[self.documents] / max(size.mean(), 1e-9)
        # Contribution of a word to each document that has it.
        self.weights = (
            np.repeat(idf, document_frequency) * term_frequency / (term_frequency + k1 * (1 - b + b * length))
        )

    def score(self, query: str) -> NDArray[np.float64]:
        """Return the score of every document, 0 without a word of the query; repeated query words count repeatedly."""
        out = np.zeros(self.count)
        for word, times in Counter(split_words(query, self.stemming)).items():
            if word in self.term_ids:
                part = slice(*self.starts[self.term_ids[word] : self.term_ids[word] + 2])
                out[self.documents[part]] += times * self.weights[part]
        return out

    def search(self, queries: Sequence[str], k: int = 10) -> SearchResult:
        """Return scores and indices of the k best documents per query; ties by index; -1 where fewer match."""
        scores = np.zeros((len(queries), k), dtype=np.float32)
        numbers = np.full((len(queries), k), -1, dtype=np.int64)
        for row, query in enumerate(queries):
            document_scores = self.score(query)
            best = np.argsort(-document_scores, kind="stable")[:k]
            best = best[document_scores[best] > 0]
            scores[row, : len(best)], numbers[row, : len(best)] = document_scores[best], best
        return scores, numbers
