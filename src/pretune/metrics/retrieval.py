"""Retrieval: nDCG@k, reciprocal rank and recall@k, averaged over queries, equal to trec_eval's.

Gold holds each query's relevant documents: a mapping `document -> gain`, or a set where all count 1. Gains of 0 and
below mean not relevant. Predicted holds each query's documents, best first; fewer than k are fine, doubles an error.
A query without any relevant document counts as 0, since nothing could be found.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

from pretune.core.errors import DataError
from pretune.metrics.checks import check_pairs

RelevantDocuments = Mapping[Hashable, float] | Collection[Hashable]
Gains = Mapping[Hashable, float]


def ndcg(gold: Iterable[RelevantDocuments], predicted: Iterable[Sequence[Hashable]], *, k: int = 10) -> float:
    """nDCG@k (Järvelin and Kekäläinen, 2002): gains over log2(rank + 1), against those of the best order; k is 10.

    >>> round(ndcg([{"a": 2, "b": 1}], [["b", "x", "a"]]), 4)
    0.7602
    """

    def one(gains: Gains, order: Sequence[Hashable]) -> float:
        best = sorted(gains.values(), reverse=True)[:k]
        return _dcg([gains.get(document, 0.0) for document in order]) / _dcg(best)

    return _mean(gold, predicted, k, one)


def mrr(gold: Iterable[RelevantDocuments], predicted: Iterable[Sequence[Hashable]], *, k: int = 10) -> float:
    """Mean reciprocal rank of the first relevant document among the first k, 10 by default; 0 where there is none.

    >>> mrr([{"a"}, {"a"}], [["b", "a"], ["b", "c"]])
    0.25
    """

    def one(gains: Gains, order: Sequence[Hashable]) -> float:
        return next((1 / rank for rank, document in enumerate(order, 1) if document in gains), 0.0)

    return _mean(gold, predicted, k, one)


def recall(gold: Iterable[RelevantDocuments], predicted: Iterable[Sequence[Hashable]], *, k: int = 10) -> float:
    """The share of a query's relevant documents among the first k, 10 by default.

    >>> recall([{"a", "b"}], [["b", "x", "a"]], k=2)
    0.5
    """

    def one(gains: Gains, order: Sequence[Hashable]) -> float:
        return sum(document in gains for document in order) / len(gains)

    return _mean(gold, predicted, k, one)


def _mean(
    gold: Iterable[RelevantDocuments],
    predicted: Iterable[Sequence[Hashable]],
    k: int,
    query_metric: Callable[[Gains, Sequence[Hashable]], float],
) -> float:
    if k < 1:
        raise DataError(f"k is {k}; 1 or more documents have to be looked at")
    left, right = check_pairs(gold, predicted)
    found: list[float] = []
    for at, (relevant, order) in enumerate(zip(left, right, strict=True)):
        if len({*order}) < len(order):
            raise DataError(f"the documents of query {at} are not all different; rank each once")
        gains = relevant if isinstance(relevant, Mapping) else dict.fromkeys(relevant, 1.0)
        gains = {document: gain for document, gain in gains.items() if gain > 0}
        found.append(query_metric(gains, order[:k]) if gains else 0.0)
    return math.fsum(found) / len(found)


def _dcg(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
