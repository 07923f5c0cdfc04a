"""What every metric asks of its input: two sequences of one length, nothing missing, one kind of label."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pretune.core.errors import DataError


def check_pairs(gold: Iterable[Any], predicted: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Both as lists of plain values, of one length that is not 0.

    >>> check_pairs((1, 0), [1, 1])
    ([1, 0], [1, 1])
    """
    left, right = _to_list(gold), _to_list(predicted)
    if len(left) != len(right):
        raise DataError(f"{len(left)} gold and {len(right)} predicted values; give one prediction for each example")
    if not left:
        raise DataError("nothing to score: there are no examples; a metric needs at least one")
    return left, right


def check_labels(gold: Iterable[Any], predicted: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """The same for labels: none may be missing, and words are not mixed with numbers, which would never be equal."""
    left, right = check_pairs(gold, predicted)
    for name, values in (("gold", left), ("predicted", right)):
        if None in values:
            raise DataError(f"{name} label {values.index(None)} is missing; score only examples that have one")
    words = {isinstance(value, str) for value in (*left, *right)}
    if len(words) > 1:
        raise DataError(
            f"labels are both words and numbers (gold {left[0]!r:.40}, predicted {right[0]!r:.40}); use one kind"
        )
    return left, right


def check_numbers(gold: Iterable[Any], predicted: Iterable[Any]) -> tuple[list[float], list[float]]:
    """The same for numbers: every one is finite."""
    left, right = check_pairs(gold, predicted)
    return check_finite("gold value", left), check_finite("predicted value", right)


def check_finite(noun: str, values: Iterable[Any]) -> list[float]:
    """Values as floats; NaN, infinity and what is no number are errors that say where."""
    found: list[float] = []
    for at, value in enumerate(values):
        if value is None or isinstance(value, str) or not math.isfinite(value):
            raise DataError(f"{noun} {at} is {value!r:.40}; a finite number is needed")
        found.append(float(value))
    return found


def ratio(part: float, total: float) -> float:
    """A share; 0 of nothing is 0, as scikit-learn's `zero_division=0`."""
    return part / total if total else 0.0


def harmonic_mean(precision: float, recall: float) -> float:
    """F1, the harmonic mean of precision and recall; 0 where both are."""
    return ratio(2 * precision * recall, precision + recall)


def to_texts(values: str | Sequence[str] | None) -> list[str]:
    """Accepted answers or references as a list: one may stand alone, and none is an empty list."""
    if values is None:
        return []
    return [values] if isinstance(values, str) else list(values)


def _to_list(values: Iterable[Any]) -> list[Any]:
    plain = getattr(values, "tolist", None)  # numpy and torch: plain numbers, many times faster to hash
    return list(plain() if plain is not None else values)
