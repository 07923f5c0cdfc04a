"""GloVe (Pennington et al., 2014): vectors whose products are the logarithms of co-occurrence counts.

Two words co-occur if they are at most `window` words apart in a text; at distance d they count 1/d. The loss is

    f(X_ij) (w_i . v_j + b_i + c_j - log X_ij)^2        f(x) = min(1, (x / 100) ^ 0.75)

and a word's vector is w + v. Pairs are batched in random order; AdaGrad keeps one value per row, where the paper's
program keeps one per weight.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretune.adaptation.static.word_ids import WordCorpus
from pretune.core.config import spec
from pretune.core.seed import make_generator
from pretune.data.sequences import Ints
from pretune.inference.word_vectors import WordVectors

Floats = NDArray[np.float64]
BATCH_SIZE = 8192
_CHUNK_WORDS = 1 << 20  # words counted at once


@spec
class Glove:
    """GloVe vectors; the defaults are the paper's except `width` and `epochs`."""

    width: int = 100
    window: int = 10
    epochs: int = 15
    rate: float = 0.05
    ceiling: float = 100.0  # count above which a pair has full weight
    power: float = 0.75
    min_count: int = 5  # words with fewer occurrences are ignored
    max_words: int | None = None  # maximum number of words with a vector

    def train(self, texts: Iterable[str] | Iterable[list[str]], *, seed: int = 0) -> WordVectors:
        """Train vectors on texts, or on lists of words. The result is reproducible for seed, texts and threads."""
        return self.fit(WordCorpus.from_texts(texts, min_count=self.min_count, max_words=self.max_words), seed=seed)

    def fit(self, words: WordCorpus, *, seed: int = 0) -> WordVectors:
        """Train vectors on a corpus of word ids."""
        first, second, counts = count_cooccurrences(words, self.window)
        log = torch.from_numpy(np.log(counts)).float()
        weight = torch.from_numpy(np.minimum(1.0, (counts / self.ceiling) ** self.power)).float()
        pairs = (torch.from_numpy(first), torch.from_numpy(second))
        sides = [_VectorTable(len(words), self.width, make_generator(seed, side)) for side in range(2)]
        for epoch in range(self.epochs):
            order = torch.from_numpy(make_generator(seed, 2, epoch).permutation(len(counts)))
            for start in range(0, len(order), BATCH_SIZE):
                indices = order[start : start + BATCH_SIZE]
                for i, j in ((0, 1), (1, 0)):  # co-occurrence is symmetric: each pair is used both ways
                    self._step(sides, pairs[i][indices], pairs[j][indices], log[indices], weight[indices])
        return WordVectors(words.words, (sides[0].table + sides[1].table)[:, :-1].numpy())

    def _step(self, sides: list["_VectorTable"], i: Tensor, j: Tensor, log: Tensor, weight: Tensor) -> None:
        word_rows, context_rows = sides[0].table.index_select(0, i), sides[1].table.index_select(0, j)
        # The last column of each table is its bias: the product without it, plus both biases.
        inner = torch.linalg.vecdot(word_rows[:, :-1], context_rows[:, :-1])
        error = ((inner + word_rows[:, -1] + context_rows[:, -1] - log) * weight).unsqueeze(1)
        word_grad, context_grad = error * context_rows, error * word_rows
        word_grad[:, -1], context_grad[:, -1] = error[:, 0], error[:, 0]
        sides[0].update(i, word_grad, self.rate)
        sides[1].update(j, context_grad, self.rate)


class _VectorTable:
    """A vector and bias per word `[V, W + 1]`, and AdaGrad's sum per word."""

    def __init__(self, words: int, width: int, rng: np.random.Generator) -> None:
        self.table = torch.from_numpy((rng.random((words, width + 1), dtype=np.float32) - 0.5) / (width + 1))
        self.sums = torch.ones(words)

    def update(self, rows: Tensor, gradient: Tensor, rate: float) -> None:
        self.sums.index_add_(0, rows, gradient.square().mean(1))
        step = (-rate * self.sums.index_select(0, rows).rsqrt_()).unsqueeze(1)
        self.table.index_add_(0, rows, gradient.mul_(step))


def count_cooccurrences(words: WordCorpus, window: int) -> tuple[Ints, Ints, Floats]:
    """Return all pairs of co-occurring words, the more frequent word first, and their counts (1/d at distance d).

    Words are counted in chunks, so memory holds the distinct pairs plus those of one chunk.
    """
    size = len(words)
    keys, counts = np.empty(0, dtype=np.int64), np.empty(0)
    for start in range(0, len(words.ids), _CHUNK_WORDS):
        stop = min(start + _CHUNK_WORDS, len(words.ids))
        for d in range(1, window + 1):
            ids, text = words.ids[start : stop + d], words.text_ids[start : stop + d]
            low, high = np.minimum(ids[:-d], ids[d:]), np.maximum(ids[:-d], ids[d:])
            same = text[:-d] == text[d:]
            new_keys, new_counts = np.unique((low * size + high)[same], return_counts=True)
            keys, counts = _merge_counts(keys, counts, new_keys, new_counts / d)
    return keys // size, keys % size, counts


def _merge_counts(keys: Ints, values: Floats, new_keys: Ints, new_values: Floats) -> tuple[Ints, Floats]:
    """Merge two sorted lists of keys; values of equal keys are added."""
    merged_keys, inverse = np.unique(np.concatenate((keys, new_keys)), return_inverse=True)
    sums: Floats = np.bincount(inverse, np.concatenate((values, new_values)), minlength=len(merged_keys)).astype(
        np.float64
    )
    return merged_keys, sums
