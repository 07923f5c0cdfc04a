"""GloVe (Pennington et al., 2014): vectors whose products are the logarithms of how often words meet.

Two words meet when they stand at most `window` words apart in a text; at distance d they meet 1/d times. The loss is

    f(X_ij) (w_i . v_j + b_i + c_j - log X_ij)^2        f(x) = min(1, (x / 100) ^ 0.75)

and a word's vector is w + v in the end. Pairs come in batches in a random order; rates are by AdaGrad with one number a
row, where the paper's program has one a weight.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretune.adaptation.static.word_ids import WordCorpus
from pretune.core.config import spec
from pretune.core.seed import make_generator
from pretune.data.ragged import Ints
from pretune.inference.word_vectors import WordVectors

Floats = NDArray[np.float64]
BATCH_SIZE = 8192
_CHUNK_WORDS = 1 << 20  # words counted at once


@spec
class Glove:
    """Vectors from counts of who stands near whom; the defaults are the paper's but for `width` and `epochs`."""

    width: int = 100
    window: int = 10
    epochs: int = 15
    rate: float = 0.05
    ceiling: float = 100.0  # meetings from which on a pair counts fully
    power: float = 0.75
    least: int = 5  # words met fewer times are left out
    most: int | None = None  # how many words have a vector

    def train(self, texts: Iterable[str] | Iterable[list[str]], *, seed: int = 0) -> WordVectors:
        """Vectors of the words of texts, or of lists of words. The same seed, texts and threads give the same bytes."""
        return self.fit(WordCorpus.from_texts(texts, min_count=self.least, max_words=self.most), seed=seed)

    def fit(self, words: WordCorpus, *, seed: int = 0) -> WordVectors:
        """Vectors from words that are numbered already."""
        first, second, met = count_cooccurrences(words, self.window)
        log = torch.from_numpy(np.log(met)).float()
        weight = torch.from_numpy(np.minimum(1.0, (met / self.ceiling) ** self.power)).float()
        pairs = (torch.from_numpy(first), torch.from_numpy(second))
        sides = [_VectorTable(len(words), self.width, make_generator(seed, side)) for side in range(2)]
        for epoch in range(self.epochs):
            order = torch.from_numpy(make_generator(seed, 2, epoch).permutation(len(met)))
            for at in range(0, len(order), BATCH_SIZE):
                take = order[at : at + BATCH_SIZE]
                for i, j in ((0, 1), (1, 0)):  # who meets is met: each pair is read both ways
                    self._step(sides, pairs[i][take], pairs[j][take], log[take], weight[take])
        return WordVectors(words.words, (sides[0].table + sides[1].table)[:, :-1].numpy())

    def _step(self, sides: list["_VectorTable"], i: Tensor, j: Tensor, log: Tensor, weight: Tensor) -> None:
        a, b = sides[0].table.index_select(0, i), sides[1].table.index_select(0, j)
        # The last column of each table is its bias: the product without both, plus both.
        inner = torch.linalg.vecdot(a[:, :-1], b[:, :-1])
        error = ((inner + a[:, -1] + b[:, -1] - log) * weight).unsqueeze(1)
        d_a, d_b = error * b, error * a
        d_a[:, -1], d_b[:, -1] = error[:, 0], error[:, 0]
        sides[0].update(i, d_a, self.rate)
        sides[1].update(j, d_b, self.rate)


class _VectorTable:
    """One vector and bias for each word `[V, W + 1]`, and what AdaGrad has summed for each."""

    def __init__(self, words: int, width: int, rng: np.random.Generator) -> None:
        self.table = torch.from_numpy((rng.random((words, width + 1), dtype=np.float32) - 0.5) / (width + 1))
        self.sums = torch.ones(words)

    def update(self, rows: Tensor, gradient: Tensor, rate: float) -> None:
        self.sums.index_add_(0, rows, gradient.square().mean(1))
        step = (-rate * self.sums.index_select(0, rows).rsqrt_()).unsqueeze(1)
        self.table.index_add_(0, rows, gradient.mul_(step))


def count_cooccurrences(words: WordCorpus, window: int) -> tuple[Ints, Ints, Floats]:
    """Every pair of words that meet, the more frequent word first, and how often they do (1/d at distance d).

    A chunk of the words is counted at a time, so memory holds the pairs there are and no more than a chunk's.
    """
    size = len(words)
    keys, met = np.empty(0, dtype=np.int64), np.empty(0)
    for start in range(0, len(words.ids), _CHUNK_WORDS):
        stop = min(start + _CHUNK_WORDS, len(words.ids))
        for d in range(1, window + 1):
            ids, text = words.ids[start : stop + d], words.text_ids[start : stop + d]
            low, high = np.minimum(ids[:-d], ids[d:]), np.maximum(ids[:-d], ids[d:])
            same = text[:-d] == text[d:]
            found, counts = np.unique((low * size + high)[same], return_counts=True)
            keys, met = _merge_counts(keys, met, found, counts / d)
    return keys // size, keys % size, met


def _merge_counts(keys: Ints, values: Floats, new_keys: Ints, new_values: Floats) -> tuple[Ints, Floats]:
    """Two sorted lists of keys as one, values of equal keys added up."""
    found, where = np.unique(np.concatenate((keys, new_keys)), return_inverse=True)
    summed: Floats = np.bincount(where, np.concatenate((values, new_values)), minlength=len(found)).astype(np.float64)
    return found, summed
