"""Quality of a text: the log odds that it is of a reference, by linear classifiers of hashed n-grams.

    classifier = fit_classifier([*map(hash_ngrams, good_texts)], [*map(hash_ngrams, corpus_texts)])
    classifier.score("Some text …")          # above 0: more like the good texts

A text is the set of its words, pairs of words and runs of three bytes, in lower case, each hashed into a bucket. There
are two logistic regressions on these sets, each fitted on one half of the texts, and a text is scored by that of the
other half: the texts of a corpus that were used for fitting would else count as worse than its other texts.

GPT-3 (Brown et al., 2020, appendix A) keeps a text if

    pareto(9) > 1 - sigmoid(score)

with noise of Pareto's distribution, so that some text unlike the reference stays. `select_texts` draws the noise by the
hash of a text. It keeps a share of the texts by adding a constant to all scores: with a constant added to the
probability, noise alone would decide where the classifier is sure.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretune.core.seed import mix_array
from pretune.text.neardup import split_words

MAX_CHARACTERS = 2**13
"""Characters at the start of a text that the classifier reads."""
ALPHA = 9
"""Shape of the Pareto distribution (Brown et al., 2020)."""

_BUCKETS = 2**20
_SEED = 0x7175_616C  # of the buckets and the noise
_EPOCHS = 5
_PENALTY = 1e-5
_RUN = 3  # bytes

Floats = NDArray[np.float64]
Buckets = NDArray[np.int32]
"""Sorted buckets of the n-grams of a text, each once."""


@dataclass(frozen=True, slots=True, eq=False)
class QualityClassifier:
    """Two fitted linear classifiers of texts, each for the half of the texts that it was not fitted on."""

    weights: NDArray[np.float32]  # [2, buckets]
    biases: tuple[float, float]
    accuracy: float | None  # mean over reference and corpus; None if there were too few texts to hold out

    def score(self, text: str) -> float:
        """Return the log odds that a text is of the reference, by its first `MAX_CHARACTERS` characters."""
        buckets = hash_ngrams(text)
        half = _choose_half(buckets)
        total = float(self.weights[half, buckets].sum(dtype=np.float64))
        return self.biases[half] + total / math.sqrt(max(len(buckets), 1))


def hash_ngrams(text: str) -> Buckets:
    """Return the buckets of a text: of its words, pairs of words and runs of three bytes."""
    words = split_words(text[:MAX_CHARACTERS])
    hashes = np.array([*map(zlib.crc32, words)], dtype=np.uint64)
    pairs = hashes[:-1] * np.uint64(0x9E3779B97F4A7C15) + hashes[1:]
    data = np.frombuffer(b" ".join(words), dtype=np.uint8).astype(np.uint64)
    runs = np.zeros(max(len(data) - _RUN + 1, 0), dtype=np.uint64)
    for place in range(_RUN):
        runs = runs << np.uint64(8) | data[place : place + len(runs)]
    numbers = [mix_array((_SEED, kind), values) for kind, values in enumerate((hashes, pairs, runs))]
    buckets = np.sort((np.concatenate(numbers) & np.uint64(_BUCKETS - 1)).astype(np.int32))
    return buckets[np.flatnonzero(np.diff(buckets, prepend=-1))]  # NOTE: np.unique hashes, which is slower here


def _choose_half(buckets: Buckets) -> int:
    """Return 0 or 1 by the content of a text."""
    return zlib.crc32(buckets.tobytes()) & 1


def fit_classifier(reference: Sequence[Buckets], corpus: Sequence[Buckets]) -> QualityClassifier:
    """Fit a classifier of reference against corpus; both need a text, in an order that is always the same."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import SGDClassifier

    rows = [*reference, *corpus]
    labels = np.repeat([1, 0], [len(reference), len(corpus)])
    halves = np.array([*map(_choose_half, rows)])
    sizes = np.array([len(row) for row in rows])
    values = np.repeat(np.maximum(sizes, 1) ** -0.5, sizes).astype(np.float32)  # every row has length 1
    x = csr_matrix((values, np.concatenate(rows), np.cumsum([0, *sizes])), shape=(len(rows), _BUCKETS))
    is_divided = all((labels[halves == half] == label).any() for half in (0, 1) for label in (0, 1))
    weights, biases = np.zeros((2, _BUCKETS), dtype=np.float32), [0.0, 0.0]
    hits = np.zeros(len(rows))
    for half in (0, 1):
        is_own = halves == half
        is_used = ~is_own if is_divided else np.ones_like(is_own)
        model = SGDClassifier(
            loss="log_loss",
            alpha=_PENALTY,
            max_iter=_EPOCHS,
            tol=None,
            class_weight="balanced",
            random_state=0,
            average=True,
        )
        model.fit(x[is_used], labels[is_used])
        weights[half], biases[half] = model.coef_[0], float(model.intercept_[0])
        hits[is_own] = (x[is_own] @ weights[half] + biases[half] > 0) == labels[is_own]
    accuracy = float((hits[labels == 1].mean() + hits[labels == 0].mean()) / 2) if is_divided else None
    return QualityClassifier(weights, (biases[0], biases[1]), accuracy)


def draw_pareto(keys: NDArray[np.uint64]) -> Floats:
    """Return noise as of `np.random.pareto(9)`, a function of the content hash of each text."""
    uniform = (mix_array((_SEED,), keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (1 - uniform) ** (-1 / ALPHA) - 1


def select_texts(
    scores: NDArray[np.floating], keys: NDArray[np.uint64], share: float | None
) -> tuple[NDArray[np.bool_], float]:
    """Return which texts to keep, and what was added to all scores: 0 as published, or what keeps a share."""
    noise = np.maximum(draw_pareto(keys), 2.0**-53)
    margins = scores - np.log(np.maximum(1 - noise, 2.0**-53) / noise)  # above 0: pareto > 1 - sigmoid(score)
    if share is None or not len(margins):
        return margins > 0, 0.0
    count = min(max(round(share * len(margins)), 1), len(margins))
    limit = float(np.partition(margins, len(margins) - count)[len(margins) - count])
    return margins >= limit, -limit
