"""Features for linear models: TF-IDF, static vectors, and what two texts of a pair have in common."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.evaluation.baselines.base import Text, split_pairs
from pretune.inference.word_vectors import WordVectors, split_words


class TfIdf:
    """Words and pairs of neighbouring words, weighted by (1 + log tf) x idf.

    The two sides of a pair are columns of their own (the same word counts differently in a premise and in a
    hypothesis); with them stand the product of both (what they share) and six numbers about the overlap.
    """

    def __init__(self, texts: Sequence[Text]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        first, second = split_pairs(texts)
        self._table = TfidfVectorizer(
            analyzer=extract_ngrams, sublinear_tf=True, min_df=compute_min_df(len(texts)), dtype=np.float32
        )
        self._table.fit(first if second is None else [*first, *second])

    def __call__(self, texts: Sequence[Text]) -> Any:
        """A sparse matrix, a row for each text."""
        from scipy import sparse  # type: ignore[import-untyped]

        first, second = split_pairs(texts)
        a = self._table.transform(first)
        if second is None:
            return a
        b = self._table.transform(second)
        return sparse.hstack([a, b, a.multiply(b), sparse.csr_matrix(compute_overlap(first, second))], format="csr")


class NgramCounts:
    """The words and word pairs of many texts, counted once, so that TF-IDF of some of them takes little more time."""

    def __init__(self, texts: Sequence[str]) -> None:
        from sklearn.feature_extraction.text import CountVectorizer

        self._counts = CountVectorizer(analyzer=extract_ngrams, dtype=np.float32).fit_transform(texts)

    def compute_tfidf(self, train: Sequence[int], test: Sequence[int]) -> tuple[Any, Any]:
        """What `TfIdf` makes of the texts of these numbers, fitted on the first."""
        from sklearn.feature_extraction.text import TfidfTransformer

        some, other = self._counts[np.asarray(train)], self._counts[np.asarray(test)]
        kept = np.flatnonzero(np.bincount(some.indices, minlength=some.shape[1]) >= compute_min_df(len(train)))
        weigh = TfidfTransformer(sublinear_tf=True)
        return weigh.fit_transform(some[:, kept]), weigh.transform(other[:, kept])


def compute_min_df(texts: int) -> int:
    """In how many of so many texts a word has to be."""
    return 2 if texts >= 1000 else 1


def extract_ngrams(text: str) -> list[str]:
    """Words and pairs of neighbouring words; a text without words has one that says so.

    >>> extract_ngrams("Not good")
    ['not', 'good', 'not good']
    """
    words = split_words(text)
    return [*words, *(" ".join(two) for two in itertools.pairwise(words))] or [""]


def compute_overlap(first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
    """Six numbers a pair: how much of each is in the other, Jaccard of words and of word pairs, how lengths compare.

    >>> compute_overlap(["a b"], ["a c d e"]).astype(float).round(2).tolist()
    [[0.5, 0.25, 0.2, 0.0, 0.5, 1.0]]
    """
    rows = []
    for one, other in zip(first, second, strict=True):
        a, b = split_words(one), split_words(other)
        left, right = set(a), set(b)
        two, more = set(itertools.pairwise(a)), set(itertools.pairwise(b))
        common = len(left & right)
        rows.append(
            (
                common / max(len(left), 1),
                common / max(len(right), 1),
                common / max(len(left | right), 1),
                len(two & more) / max(len(two | more), 1),
                min(len(a), len(b)) / max(len(a), len(b), 1),
                float(len(a) < len(b)),
            )
        )
    return np.array(rows, dtype=np.float32).reshape(-1, 6)


def average_vectors(vectors: WordVectors, texts: Sequence[Text]) -> NDArray[np.float32]:
    """The mean vector of a text; of a pair both, |a - b|, a * b (as in InferSent) and the overlap."""
    first, second = split_pairs(texts)
    a = vectors.average(first)
    if second is None:
        return a
    b = vectors.average(second)
    return np.concatenate((a, b, np.abs(a - b), a * b, compute_overlap(first, second)), axis=1)
