"""Coreference: MUC, B-cubed and CEAF-e of clusters of mentions, and their mean, as the reference scorer (v8.01).

A document is a list of clusters, a cluster a list of mentions, a mention anything hashable, such as (first, last word).
Counts are summed over documents (Pradhan et al., 2014). Mentions are compared exactly, and singletons count as they
are: MUC ignores them, B-cubed and CEAF-e do not.

    gold       a b c | d e f g                 MUC       2 of 5 links        0.40
    predicted  a b | c d | f g h i             B-cubed   35/84, 4/8          0.45
                                               CEAF-e    1.3 of 2, of 3      0.52
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import numpy as np

from pretune.core.errors import DataError
from pretune.metrics import check_pairs, harmonic_mean, ratio

Clusters = Sequence[Sequence[Hashable]]
Owners = Mapping[Hashable, int]
"""Cluster of each mention."""


def coreference(gold: Iterable[Clusters], predictions: Iterable[Clusters]) -> dict[str, float]:
    """CoNLL F1, the mean of the F1 of MUC, B-cubed and CEAF-e; each of them, and the F1 of mentions.

    A mention in two clusters of a document is an error. Each is 0 if its denominator is 0: all of them if no document
    has a cluster, MUC if no cluster has two mentions.

    >>> round(coreference([["abc", "defg"]], [["ab", "cd", "fghi"]])["conll_f1"], 3)
    0.458
    """
    documents = [
        (_find_owners(g, f"gold document {number}"), _find_owners(p, f"predicted document {number}"))
        for number, (g, p) in enumerate(zip(*check_pairs(gold, predictions), strict=True))
    ]
    reversed_pairs = [(p, g) for g, p in documents]
    scores = {
        f"{name}_f1": harmonic_mean(_sum_ratio(count, reversed_pairs), _sum_ratio(count, documents))
        for name, count in (("muc", _count_links), ("b_cubed", _count_shared), ("ceaf_e", _count_aligned))
    }
    mentions = harmonic_mean(_sum_ratio(_count_mentions, reversed_pairs), _sum_ratio(_count_mentions, documents))
    return {"conll_f1": sum(scores.values()) / len(scores), **scores, "mention_f1": mentions}


def _find_owners(clusters: Clusters, name: str) -> Owners:
    owners: dict[Hashable, int] = {}
    for number, cluster in enumerate(clusters):
        for mention in cluster:
            if owners.setdefault(mention, number) != number:
                raise DataError(f"{name}: the mention {mention!r:.40} is in two clusters; a mention may have only one")
    return owners


def _sum_ratio(
    count: Callable[[Owners, Owners], tuple[float, float]], documents: Sequence[tuple[Owners, Owners]]
) -> float:
    """Return a recall: its numerators and denominators are summed over documents."""
    parts = [count(key, response) for key, response in documents]
    return ratio(sum(part for part, _ in parts), sum(total for _, total in parts))


def _count_mentions(key: Owners, response: Owners) -> tuple[float, float]:
    return len(key.keys() & response.keys()), len(key)


def _count_links(key: Owners, response: Owners) -> tuple[float, float]:
    """Return the links of a chain through each cluster that the response has, and all (MUC: Vilain et al., 1995).

    A cluster that the response splits into p parts lacks p - 1 links; a mention that it does not have is a part.
    """
    parts = {(cluster, response.get(mention, mention)) for mention, cluster in key.items()}
    clusters = len({*key.values()})
    return len(key) - len(parts), len(key) - clusters


def _count_shared(key: Owners, response: Owners) -> tuple[float, float]:
    """Return the sum over mentions of the share of their cluster that the response has with them (Bagga, 1998)."""
    sizes = Counter(key.values())
    return sum(size**2 / sizes[cluster] for (cluster, _), size in _count_overlaps(key, response).items()), len(key)


def _count_aligned(key: Owners, response: Owners) -> tuple[float, float]:
    """Return the similarity of the best alignment of clusters, 2 |K & R| / (|K| + |R|) (CEAF-e: Luo, 2005)."""
    from scipy.optimize import linear_sum_assignment

    key_sizes, response_sizes = Counter(key.values()), Counter(response.values())
    similarity = np.zeros((max(key_sizes, default=-1) + 1, max(response_sizes, default=-1) + 1))
    for (i, j), size in _count_overlaps(key, response).items():
        similarity[i, j] = 2 * size / (key_sizes[i] + response_sizes[j])
    return float(similarity[linear_sum_assignment(similarity, maximize=True)].sum()), len(key_sizes)


def _count_overlaps(key: Owners, response: Owners) -> Counter[tuple[int, int]]:
    """Return the number of common mentions of each pair of clusters that have any."""
    return Counter((cluster, response[mention]) for mention, cluster in key.items() if mention in response)
