"""Accuracy, F1 and Matthews correlation, equal to scikit-learn's, and the pairs that GLUE averages.

Labels are numbers or strings. All are functions of the confusion counts `(gold, predicted) -> examples`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pretune.core.errors import DataError
from pretune.metrics.checks import check_labels, ratio


def accuracy(gold: Iterable[Any], predictions: Iterable[Any]) -> float:
    """Share of correct labels.

    >>> accuracy(["a", "b", "b", "a"], ["a", "b", "a", "a"])
    0.75
    """
    left, right = check_labels(gold, predictions)
    return sum(bool(g == p) for g, p in zip(left, right, strict=True)) / len(left)


def f1(gold: Iterable[Any], predictions: Iterable[Any], *, positive: Any = 1) -> float:
    """F1 of the positive class (label 1).

    0 if no example is positive in gold or predictions, even for perfect predictions.

    >>> f1([1, 1, 0, 0], [1, 0, 0, 1])
    0.5
    """
    counts = _count_pairs(gold, predictions)
    if isinstance(positive, str) != isinstance(next(iter(counts))[0], str):
        labels = sorted({str(label) for pair in counts for label in pair})
        raise DataError(
            f"the positive label {positive!r} is not of the type of {', '.join(labels)[:80]}; set positive=…"
        )
    return _f1(counts, positive)


def f1_macro(gold: Iterable[Any], predictions: Iterable[Any], *, labels: Sequence[Any] | None = None) -> float:
    """Macro F1: F1 averaged over the classes that occur in gold or predictions.

    `labels` fixes the classes; a class that does not occur then counts as 0.

    >>> round(f1_macro([0, 1, 2, 2], [0, 2, 2, 2]), 4)
    0.6
    """
    counts = _count_pairs(gold, predictions)
    classes = {label for pair in counts for label in pair} if labels is None else [*labels]
    if not classes:
        raise DataError("labels is empty; pass at least one class")
    return math.fsum(_f1(counts, label) for label in classes) / len(classes)


def f1_micro(gold: Iterable[Any], predictions: Iterable[Any], *, labels: Sequence[Any] | None = None) -> float:
    """Micro F1 over all classes; over all of them it equals accuracy, so exclude some with `labels`.

    >>> f1_micro(["O", "PER", "LOC"], ["PER", "PER", "O"], labels=["PER", "LOC"])
    0.5
    """
    counts = _count_pairs(gold, predictions)
    classes = {label for pair in counts for label in pair} if labels is None else {*labels}
    right = sum(n for (g, p), n in counts.items() if g == p and g in classes)
    gold_and_predicted = sum(n * ((g in classes) + (p in classes)) for (g, p), n in counts.items())
    return ratio(2 * right, gold_and_predicted)


def matthews(gold: Iterable[Any], predictions: Iterable[Any]) -> float:
    """Matthews correlation (1975); for several classes Gorodkin's R_K (2004).

    0 if gold or predictions have only one class.

    >>> round(matthews([1, 1, 0, 0], [1, 0, 0, 0]), 4)
    0.5774
    """
    counts = _count_pairs(gold, predictions)
    total = counts.total()
    gold_sizes, predicted_sizes = Counter[Any](), Counter[Any]()
    for (g, p), n in counts.items():
        gold_sizes[g] += n
        predicted_sizes[p] += n
    right = sum(n for (g, p), n in counts.items() if g == p)
    covariance = right * total - sum(n * predicted_sizes[label] for label, n in gold_sizes.items())
    gold_spread = total**2 - sum(n**2 for n in gold_sizes.values())
    predicted_spread = total**2 - sum(n**2 for n in predicted_sizes.values())
    return ratio(covariance, math.sqrt(gold_spread) * math.sqrt(predicted_spread))


def accuracy_f1(gold: Iterable[Any], predictions: Iterable[Any], *, positive: Any = 1) -> dict[str, float]:
    """Mean of accuracy and F1 of the positive class, as GLUE scores MRPC and QQP."""
    left, right = check_labels(gold, predictions)
    return average_scores(accuracy=accuracy(left, right), f1=f1(left, right, positive=positive))


def accuracy_f1_macro(gold: Iterable[Any], predictions: Iterable[Any]) -> dict[str, float]:
    """Mean of accuracy and macro F1, as SuperGLUE scores CB."""
    left, right = check_labels(gold, predictions)
    return average_scores(accuracy=accuracy(left, right), f1=f1_macro(left, right))


def average_scores(**parts: float) -> dict[str, float]:
    """Return scores preceded by their mean, which is the headline.

    >>> average_scores(accuracy=0.75, f1=0.25)
    {'average': 0.5, 'accuracy': 0.75, 'f1': 0.25}
    """
    return {"average": math.fsum(parts.values()) / len(parts), **parts}


def _count_pairs(gold: Iterable[Any], predictions: Iterable[Any]) -> Counter[tuple[Any, Any]]:
    return Counter(zip(*check_labels(gold, predictions), strict=True))


def _f1(counts: Counter[tuple[Any, Any]], label: Any) -> float:
    right = counts[label, label]
    return ratio(2 * right, sum(n * ((g == label) + (p == label)) for (g, p), n in counts.items()))
