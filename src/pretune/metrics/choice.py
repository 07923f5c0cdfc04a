"""Multiple-choice accuracy and calibration. Ties count as wrong."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pretune.core.errors import DataError
from pretune.metrics.checks import check_finite, check_pairs


def choice_accuracy(gold: Iterable[int], predictions: Iterable[Sequence[float]]) -> float:
    """Share of questions whose right option has the highest score; a tie is wrong.

    `predictions` holds the scores of each question's options; their number may differ between questions.

    >>> choice_accuracy([0, 1, 0], [[0.9, 0.1], [0.9, 0.1], [0.5, 0.5]])  # right, wrong, a tie
    0.3333333333333333
    """
    left, right = check_pairs(gold, predictions)
    return sum(_is_correct(i, g, p) for i, (g, p) in enumerate(zip(left, right, strict=True))) / len(left)


def calibration_error(gold: Iterable[int], predictions: Iterable[Sequence[float]], *, bins: int = 15) -> float:
    """Expected calibration error (Guo et al., 2017): confidence against accuracy over bins of confidence; 0 is best.

    `predictions` holds class probabilities. Bins have equal width, `(low, high]`, and are weighted by their examples.

    >>> calibration_error([0, 0, 1, 1], [[0.75, 0.25]] * 4)  # confidence 75 %, accuracy 50 %
    0.25
    """
    if bins < 1:
        raise DataError(f"bins must be >= 1, got {bins}")
    left, right = check_pairs(gold, predictions)
    is_correct = np.array([_is_correct(i, g, p) for i, (g, p) in enumerate(zip(left, right, strict=True))], dtype=float)
    for i, row in enumerate(right):
        if min(row) < 0 or abs(sum(row) - 1) > 1e-3:
            raise DataError(f"prediction {i} does not hold probabilities: the sum is {sum(row):.4g}; apply a softmax")
    confidence = np.array([max(row) for row in right], dtype=float)
    owner = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(owner, weights=is_correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(left))


def _is_correct(index: int, gold: Any, scores: Any) -> bool:
    """Return whether the right option beats every other one."""
    values = check_finite(f"score of example {index}, option", scores)
    if isinstance(gold, bool) or not isinstance(gold, int) or not 0 <= gold < len(values):
        raise DataError(f"gold {index} is {gold!r:.40}; expected the index of one of {len(values)} options, from 0")
    return all(values[gold] > value for i, value in enumerate(values) if i != gold)
