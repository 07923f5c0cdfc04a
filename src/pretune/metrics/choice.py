"""Choosing among options by their scores, and whether the confidence in a choice is deserved. Ties are never right."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pretune.core.errors import DataError
from pretune.metrics.checks import check_finite, check_pairs


def choice_accuracy(gold: Iterable[int], predicted: Iterable[Sequence[float]]) -> float:
    """The share of questions whose right option has the highest score of all; a tie is a mistake.

    `predicted` holds the scores of a question's options, whose number may differ between questions.

    >>> choice_accuracy([0, 1, 0], [[0.9, 0.1], [0.9, 0.1], [0.5, 0.5]])  # right, wrong, a tie
    0.3333333333333333
    """
    left, right = check_pairs(gold, predicted)
    return sum(_is_correct(at, g, p) for at, (g, p) in enumerate(zip(left, right, strict=True))) / len(left)


def calibration_error(gold: Iterable[int], predicted: Iterable[Sequence[float]], *, bins: int = 15) -> float:
    """Expected calibration error (Guo et al., 2017): confidence against accuracy over bins of confidence; 0 is best.

    `predicted` holds probabilities of the classes. Bins have equal width, `(low, high]`, and count by their examples.

    >>> calibration_error([0, 0, 1, 1], [[0.75, 0.25]] * 4)  # sure to 75 %, right in 50 %
    0.25
    """
    if bins < 1:
        raise DataError(f"bins is {bins}; 1 or more are needed")
    left, right = check_pairs(gold, predicted)
    hit = np.array([_is_correct(at, g, p) for at, (g, p) in enumerate(zip(left, right, strict=True))], dtype=float)
    for at, row in enumerate(right):
        if min(row) < 0 or abs(sum(row) - 1) > 1e-3:
            raise DataError(
                f"prediction {at} does not hold probabilities: it adds up to {sum(row):.4g}; apply a softmax"
            )
    confidence = np.array([max(row) for row in right], dtype=float)
    owner = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(owner, weights=hit - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(left))


def _is_correct(index: int, gold: Any, scores: Any) -> bool:
    """Whether the right option beats every other one."""
    values = check_finite(f"score of example {index}, option", scores)
    if isinstance(gold, bool) or not isinstance(gold, int) or not 0 <= gold < len(values):
        raise DataError(
            f"gold {index} is {gold!r:.40}; the number of one of its {len(values)} options, from 0, is needed"
        )
    return all(values[gold] > value for other, value in enumerate(values) if other != gold)
