"""Metrics of numbers: Pearson and Spearman correlation, equal to scipy's, the mean squared error, and perplexity.

A correlation is 0 if gold or predictions are constant (also for one example), where scipy returns NaN. Token
perplexities of models with different vocabularies are not comparable; those per word or byte are:

    perplexity(nats, tokens)   perplexity(nats, words)   bits(nats, bytes)
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError
from pretune.metrics import check_numbers
from pretune.metrics.classification import average_scores

Floats = NDArray[np.float64]


def pearson(gold: Iterable[Any], predictions: Iterable[Any]) -> float:
    """Pearson's linear correlation.

    >>> round(pearson([1, 2, 3], [2, 4, 7]), 4)
    0.9934
    """
    left, right = check_numbers(gold, predictions)
    return _pearson(np.asarray(left), np.asarray(right))


def spearman(gold: Iterable[Any], predictions: Iterable[Any]) -> float:
    """Spearman's rank correlation; equal values share the mean of their ranks.

    >>> spearman([1, 2, 3], [2, 4, 400])
    1.0
    """
    left, right = check_numbers(gold, predictions)
    return _pearson(compute_ranks(np.asarray(left)), compute_ranks(np.asarray(right)))


def pearson_spearman(gold: Iterable[Any], predictions: Iterable[Any]) -> dict[str, float]:
    """Mean of Pearson and Spearman correlation, as GLUE scores STS-B."""
    left, right = check_numbers(gold, predictions)
    return average_scores(pearson=pearson(left, right), spearman=spearman(left, right))


def mean_squared_error(gold: Iterable[Any], predictions: Iterable[Any]) -> float:
    """Mean squared error, in the squared unit of the scores; 0 is perfect.

    >>> mean_squared_error([1, 2], [1, 4])
    2.0
    """
    left, right = check_numbers(gold, predictions)
    return float(np.mean((np.asarray(left) - np.asarray(right)) ** 2))


def compute_ranks(values: Floats) -> Floats:
    """Return ranks from 1; equal values share the mean of their ranks.

    >>> compute_ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return np.asarray((last - (sizes - 1) / 2)[group])


def _pearson(left: Floats, right: Floats) -> float:
    if left.min() == left.max() or right.min() == right.max():  # before centering, which leaves rounding errors
        return 0.0
    left, right = _to_unit_vector(left), _to_unit_vector(right)
    return float(np.clip(left @ right, -1.0, 1.0))


def _to_unit_vector(values: Floats) -> Floats:
    """Center and normalize; scaled first, so that squares of huge or tiny values stay finite."""
    values = values / np.abs(values).max()
    values = values - values.mean()
    size = np.linalg.norm(values)
    return values / size if size else values


def perplexity(nats: float, units: float) -> float:
    """exp of the mean loss; infinity if a float overflows.

    >>> round(perplexity(2 * math.log(50), 2), 9)
    50.0
    """
    mean = _mean_loss(nats, units)
    return math.exp(mean) if mean < 709 else math.inf


def bits(nats: float, units: float) -> float:
    """Mean loss in bits; per byte, the size of the text compressed by the model.

    >>> bits(8 * math.log(2), 4)
    2.0
    """
    return _mean_loss(nats, units) / math.log(2)


def _mean_loss(nats: float, units: float) -> float:
    if not units > 0:
        raise DataError(f"units must be > 0 for a mean loss, got {units}")
    if math.isnan(nats):
        raise DataError("the summed loss is nan; check the batch it comes from")
    return nats / units
