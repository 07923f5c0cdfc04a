"""Input validation of metrics: two sequences of the same length, no missing values, one type of label."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pretune.core.errors import DataError


def check_pairs(gold: Iterable[Any], predictions: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Return both as lists of the same length, which must not be empty.

    >>> check_pairs((1, 0), [1, 1])
    ([1, 0], [1, 1])
    """
    left, right = _to_list(gold), _to_list(predictions)
    if len(left) != len(right):
        raise DataError(f"{len(left)} gold values, but {len(right)} predictions; pass one prediction for each example")
    if not left:
        raise DataError("no examples to score; a metric needs at least one")
    return left, right


def check_labels(gold: Iterable[Any], predictions: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Return labels as lists: none may be missing, and strings must not be mixed with numbers."""
    left, right = check_pairs(gold, predictions)
    for name, values in (("gold", left), ("predicted", right)):
        if None in values:
            raise DataError(f"{name} label {values.index(None)} is missing; score only labelled examples")
    words = {isinstance(value, str) for value in (*left, *right)}
    if len(words) > 1:
        raise DataError(
            f"labels mix strings and numbers (gold {left[0]!r:.40}, predicted {right[0]!r:.40}); use one type"
        )
    return left, right


def check_numbers(gold: Iterable[Any], predictions: Iterable[Any]) -> tuple[list[float], list[float]]:
    """Return finite numbers as lists."""
    left, right = check_pairs(gold, predictions)
    return check_finite("gold value", left), check_finite("predicted value", right)


def check_finite(noun: str, values: Iterable[Any]) -> list[float]:
    """Return values as floats; NaN, infinity and non-numbers raise an error with their position."""
    numbers: list[float] = []
    for i, value in enumerate(values):
        if value is None or isinstance(value, str) or not math.isfinite(value):
            raise DataError(f"{noun} {i} is {value!r:.40}; expected a finite number")
        numbers.append(float(value))
    return numbers


def ratio(part: float, total: float) -> float:
    """Return a ratio; 0 if the total is 0, as `zero_division=0` in scikit-learn."""
    return part / total if total else 0.0


def harmonic_mean(precision: float, recall: float) -> float:
    """Return F1, the harmonic mean of precision and recall; 0 if both are 0."""
    return ratio(2 * precision * recall, precision + recall)


def to_texts(values: str | Sequence[str] | None) -> list[str]:
    """Return accepted answers or references as a list; None gives an empty list."""
    if values is None:
        return []
    return [values] if isinstance(values, str) else list(values)


def _to_list(values: Iterable[Any]) -> list[Any]:
    to_list = getattr(values, "tolist", None)  # numpy and torch: Python numbers are much faster to hash
    return list(to_list() if to_list is not None else values)
