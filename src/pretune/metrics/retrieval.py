"""Retrieval metrics: nDCG@k, reciprocal rank and recall@k, averaged over queries, equal to trec_eval's.

Gold holds the relevant documents of each query: a mapping `document -> gain`, or a set with gains of 1. Gains <= 0 mean
not relevant. Predictions are the documents of each query, best first; fewer than k are fine, duplicates are an error.
A query without relevant documents counts as 0.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

from pretune.core.errors import DataError
from pretune.metrics import check_pairs

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

    return _mean(gold, predictions, k, score_query)


def mrr(gold: Iterable[RelevantDocuments], predictions: Iterable[Sequence[Hashable]], *, k: int = 10) -> float:
    """Mean reciprocal rank of the first relevant document among the first k; 0 if there is none.

    >>> mrr([{"a"}, {"a"}], [["b", "a"], ["b", "c"]])
    0.25
    """

    def score_query(gains: Gains, order: Sequence[Hashable]) -> float:
        return next((1 / rank for rank, document in enumerate(order, 1) if document in gains), 0.0)

    return _mean(gold, predictions, k, score_query)


def recall(gold: Iterable[RelevantDocuments], predictions: Iterable[Sequence[Hashable]], *, k: int = 10) -> float:
    """Share of a query's relevant documents among the first k.

    >>> recall([{"a", "b"}], [["b", "x", "a"]], k=2)
    0.5
    """

    def score_query(gains: Gains, order: Sequence[Hashable]) -> float:
        return sum(document in gains for document in order) / len(gains)

    return _mean(gold, predictions, k, score_query)


def _mean(
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
