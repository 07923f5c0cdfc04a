"""Metrics over groups of examples: MultiRC's answers of one question, Winogender's two sentences of a pair.

Gold and predictions come as one sequence of labels per group; `group_values` makes these out of flat ones:

    multirc(by_group(labels, questions), by_group(predictions, questions))
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Any

from pretune.core.errors import DataError
from pretune.metrics.checks import check_pairs
from pretune.metrics.classification import average_scores, f1

GROUP_METRICS = ("multirc", "gender_parity")
"""Metrics whose unit is a group of examples: a limit that parts a group changes what they measure."""


def group_values(values: Iterable[Any], groups: Iterable[Hashable]) -> list[list[Any]]:
    """Values gathered by group, groups in the order of their first member, which need not lie together.

    >>> group_values([1, 0, 1], ["a", "b", "a"])
    [[1, 1], [0]]
    """
    left, right = check_pairs(values, groups)
    found: dict[Hashable, list[Any]] = {}
    for value, group in zip(left, right, strict=True):
        found.setdefault(group, []).append(value)
    return list(found.values())


def multirc(gold: Iterable[Sequence[int]], predicted: Iterable[Sequence[int]]) -> dict[str, float]:
    """MultiRC (Khashabi et al., 2018): F1a over all answers, and the share of questions with all answers right.

    Averaged, as SuperGLUE does. Labels are 0 and 1. F1a is 0 where nothing is 1, neither in gold nor predicted.

    >>> multirc([[1, 0], [1, 1]], [[1, 0], [1, 0]])
    {'average': 0.65, 'f1a': 0.8, 'exact_match': 0.5}
    """
    left, right = _check_groups(gold, predicted)
    whole = sum(list(g) == list(p) for g, p in zip(left, right, strict=True)) / len(left)
    return average_scores(f1a=f1(chain(*left), chain(*right)), exact_match=whole)


def gender_parity(gold: Iterable[Sequence[Any]], predicted: Iterable[Sequence[Any]]) -> float:
    """Gender parity (SuperGLUE's AX-g): the share of groups in which all predictions are the same, right or wrong.

    >>> gender_parity([[1, 1], [0, 0]], [[0, 0], [0, 1]])
    0.5
    """
    _, right = _check_groups(gold, predicted)
    return sum(len({*group}) == 1 for group in right) / len(right)


def _check_groups(gold: Iterable[Sequence[Any]], predicted: Iterable[Sequence[Any]]) -> tuple[list[Any], list[Any]]:
    left, right = check_pairs(gold, predicted)
    for at, (g, p) in enumerate(zip(left, right, strict=True)):
        if not len(g) == len(p) > 0:
            raise DataError(
                f"group {at} has {len(g)} gold and {len(p)} predicted labels; the same number, not 0, is needed"
            )
    return left, right
