"""Metrics over groups of examples: answers of a question in MultiRC, sentence pairs in Winogender.

Gold and predictions are one sequence of labels per group; `group_values` builds these from flat ones:

    multirc(group_values(labels, questions), group_values(predictions, questions))
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Any

from pretune.core.errors import DataError
from pretune.metrics.checks import check_pairs
from pretune.metrics.classification import average_scores, f1

GROUP_METRICS = ("multirc", "gender_parity")
"""Metrics whose unit is a group of examples: a subset must not split a group."""


def group_values(values: Iterable[Any], groups: Iterable[Hashable]) -> list[list[Any]]:
    """Collect values by group, in the order of first occurrence; members need not be adjacent.

    >>> group_values([1, 0, 1], ["a", "b", "a"])
    [[1, 1], [0]]
    """
    left, right = check_pairs(values, groups)
    values_by_group: dict[Hashable, list[Any]] = {}
    for value, group in zip(left, right, strict=True):
        values_by_group.setdefault(group, []).append(value)
    return list(values_by_group.values())


def multirc(gold: Iterable[Sequence[int]], predictions: Iterable[Sequence[int]]) -> dict[str, float]:
    """MultiRC (Khashabi et al., 2018): F1a over all answers, and the share of questions with all answers correct.

    Averaged as in SuperGLUE. Labels are 0 and 1. F1a is 0 if no label is 1 in gold or predictions.

    >>> multirc([[1, 0], [1, 1]], [[1, 0], [1, 0]])
    {'average': 0.65, 'f1a': 0.8, 'exact_match': 0.5}
    """
    left, right = _check_groups(gold, predictions)
    exact_match = sum(list(g) == list(p) for g, p in zip(left, right, strict=True)) / len(left)
    return average_scores(f1a=f1(chain(*left), chain(*right)), exact_match=exact_match)


def gender_parity(gold: Iterable[Sequence[Any]], predictions: Iterable[Sequence[Any]]) -> float:
    """Gender parity (SuperGLUE's AX-g): the share of groups with equal predictions, correct or not.

    >>> gender_parity([[1, 1], [0, 0]], [[0, 0], [0, 1]])
    0.5
    """
    _, right = _check_groups(gold, predictions)
    return sum(len({*group}) == 1 for group in right) / len(right)


def _check_groups(gold: Iterable[Sequence[Any]], predictions: Iterable[Sequence[Any]]) -> tuple[list[Any], list[Any]]:
    left, right = check_pairs(gold, predictions)
    for i, (g, p) in enumerate(zip(left, right, strict=True)):
        if not len(g) == len(p) > 0:
            raise DataError(
                f"group {i} has {len(g)} gold and {len(p)} predicted labels; expected the same number, not 0"
            )
    return left, right
