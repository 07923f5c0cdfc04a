"""Metrics of numbers and of rankings: correlations, equal to scipy's, the mean squared error, perplexity, and nDCG.

A correlation is 0 if gold or predictions are constant (also for one example), where scipy returns NaN. Token
perplexities of models with different vocabularies are not comparable; those per word or byte are:

    perplexity(nats, tokens)   perplexity(nats, words)   bits(nats, bytes)

Retrieval is scored by nDCG@k, reciprocal rank and recall@k, averaged over queries, equal to trec_eval's. Gold holds the
relevant documents of each query: a mapping `document -> gain`, or a set with gains of 1. Gains <= 0 mean not relevant.
Predictions are the documents of each query, best first; fewer than k are fine, duplicates are an error. A query without
relevant documents counts as 0.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError
from pretune.metrics import check_numbers, check_pairs
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


def softmax(scores: Floats) -> Floats:
    """Return the probabilities of options from their scores.

    >>> softmax(np.log([0.02, 0.06])).round(3).tolist()
    [0.25, 0.75]
    """
    exponentials = np.exp(scores - scores.max())
    return np.asarray(exponentials / exponentials.sum())


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


RelevantDocuments = Mapping[Hashable, float] | Collection[Hashable]
Gains = Mapping[Hashable, float]


def ndcg(gold: Iterable[RelevantDocuments], predictions: Iterable[Sequence[Hashable]], *, k: int = 10) -> float:
    """nDCG@k (Järvelin and Kekäläinen, 2002): gains over log2(rank + 1), relative to the ideal order.

    >>> round(ndcg([{"a": 2, "b": 1}], [["b", "x", "a"]]), 4)
    0.7602
    """

    def score_query(gains: Gains, order: Sequence[Hashable]) -> float:
        best = sorted(gains.values(), reverse=True)[:k]
        return _dcg([gains.get(document, 0.0) for document in order]) / _dcg(best)

    return _score_queries(gold, predictions, k, score_query)


def mrr(gold: Iterable[RelevantDocuments], predictions: Iterable[Sequence[Hashable]], *, k: int = 10) -> float:
    """Mean reciprocal rank of the first relevant document among the first k; 0 if there is none.

    >>> mrr([{"a"}, {"a"}], [["b", "a"], ["b", "c"]])
    0.25
    """

    def score_query(gains: Gains, order: Sequence[Hashable]) -> float:
        return next((1 / rank for rank, document in enumerate(order, 1) if document in gains), 0.0)

    return _score_queries(gold, predictions, k, score_query)


def recall(gold: Iterable[RelevantDocuments], predictions: Iterable[Sequence[Hashable]], *, k: int = 10) -> float:
    """Share of a query's relevant documents among the first k.

    >>> recall([{"a", "b"}], [["b", "x", "a"]], k=2)
    0.5
    """

    def score_query(gains: Gains, order: Sequence[Hashable]) -> float:
        return sum(document in gains for document in order) / len(gains)

    return _score_queries(gold, predictions, k, score_query)


def _score_queries(
    gold: Iterable[RelevantDocuments],
    predictions: Iterable[Sequence[Hashable]],
    k: int,
    query_metric: Callable[[Gains, Sequence[Hashable]], float],
) -> float:
    if k < 1:
        raise DataError(f"k must be >= 1, got {k}")
    left, right = check_pairs(gold, predictions)
    scores: list[float] = []
    for i, (relevant, order) in enumerate(zip(left, right, strict=True)):
        if len({*order}) < len(order):
            raise DataError(f"duplicate documents for query {i}; rank each document once")
        gains = relevant if isinstance(relevant, Mapping) else dict.fromkeys(relevant, 1.0)
        gains = {document: gain for document, gain in gains.items() if gain > 0}
        scores.append(query_metric(gains, order[:k]) if gains else 0.0)
    return math.fsum(scores) / len(scores)


def _dcg(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
