"""BM25 (Robertson et al., 1994), the simple baseline of every search: words that are rare in all documents and frequent
in this one, in the form of Lucene (Kamphuis et al., 2020).

    BM25(["the cat sat", "a dog"]).search(["cats"], k=1)        # scores [1, 1] and the numbers of documents [1, 1]
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError
from pretune.metrics.porter import stem

K1, B = 1.2, 0.75
"""How soon more of a word adds nothing, and how much long documents are held back."""

_WORD = re.compile(r"\w+")
SearchResult = tuple[NDArray[np.float32], NDArray[np.int64]]


def split_words(text: str, stemming: bool = True) -> list[str]:
    """The words of a text in lower case, without their endings."""
    found = _WORD.findall(text.lower())
    return [stem(word) for word in found] if stemming else found


class BM25:
    """Documents by the words in them; a query asks only for the documents that have one of its words."""

    def __init__(self, texts: Sequence[str], *, k1: float = K1, b: float = B, stemming: bool = True) -> None:
        if not texts:
            raise DataError("no documents to search in")
        self.count, self.stemming = len(texts), stemming
        number: dict[str, int] = {}
        terms, documents, times, sizes = list[int](), list[int](), list[int](), list[int]()
        for document, text in enumerate(texts):
            found = Counter(split_words(text, stemming))
            sizes.append(sum(found.values()))
            for word, count in found.items():
                terms.append(number.setdefault(word, len(number)))
                documents.append(document)
                times.append(count)
        self.term_ids = number
        order = np.argsort(np.array(terms, dtype=np.int64), kind="stable")
        self.documents = np.array(documents, dtype=np.int64)[order]
        often = np.array(times, dtype=np.float64)[order]
        frequency = np.bincount(np.array(terms, dtype=np.int64), minlength=len(number))
        self.starts = np.concatenate(([0], np.cumsum(frequency)))
        rare = np.log(1 + (self.count - frequency + 0.5) / (frequency + 0.5))
        size = np.array(sizes, dtype=np.float64)
        length = size[self.documents] / max(size.mean(), 1e-9)
        # What a word adds to each document that has it.
        self.weights = np.repeat(rare, frequency) * often / (often + k1 * (1 - b + b * length))

    def score(self, query: str) -> NDArray[np.float64]:
        """Of every document, 0 where it has no word of the query; a word asked for twice counts twice."""
        out = np.zeros(self.count)
        for word, times in Counter(split_words(query, self.stemming)).items():
            if word in self.term_ids:
                part = slice(*self.starts[self.term_ids[word] : self.term_ids[word] + 2])
                out[self.documents[part]] += times * self.weights[part]
        return out

    def search(self, queries: Sequence[str], k: int = 10) -> SearchResult:
        """The k best documents of each query, best first; of equal ones the earlier. -1 where fewer have any word."""
        scores = np.zeros((len(queries), k), dtype=np.float32)
        numbers = np.full((len(queries), k), -1, dtype=np.int64)
        for row, query in enumerate(queries):
            found = self.score(query)
            best = np.argsort(-found, kind="stable")[:k]
            best = best[found[best] > 0]
            scores[row, : len(best)], numbers[row, : len(best)] = found[best], best
        return scores, numbers
