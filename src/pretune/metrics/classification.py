"""Accuracy, F1 and Matthews correlation, equal to scikit-learn's, and the scores of multiple choice and of groups.

Labels are numbers or strings. All are functions of the confusion counts `(gold, predicted) -> examples`. We do not call
scikit-learn: it takes 10 to 90 times as long for a test set of 200 examples, and a bootstrap scores thousands of them.
"""

import math
import numbers
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from pretune.core.errors import DataError
from pretune.metrics import check_finite, check_labels, check_pairs, ratio

NO_LABEL = -1
"""Predicted label of an invalid answer or of a tie: always wrong, and no class."""


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
    """Macro F1: F1 averaged over the classes that occur in gold or predictions; `NO_LABEL` is no class.

    `labels` fixes the classes; a class that does not occur then counts as 0.

    >>> round(f1_macro([0, 1, 2, 2], [0, 2, 2, 2]), 4)
    0.6
    """
    counts = _count_pairs(gold, predictions)
    classes: Collection[Any] = _find_classes(counts) if labels is None else [*labels]
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


def multilabel_f1(gold: Iterable[Iterable[Any]], predictions: Iterable[Iterable[Any]]) -> dict[str, float]:
    """Micro and macro F1 of sets of labels, and the share of sets that match exactly.

    The macro average is over the labels that occur in gold or predictions. F1 is 0 if no set has a label.

    >>> multilabel_f1([["a", "b"], ["a"], []], [["a"], ["a", "c"], []])
    {'f1_micro': 0.6666666666666666, 'f1_macro': 0.3333333333333333, 'exact_match': 0.3333333333333333}
    """
    pairs = [({*g}, {*p}) for g, p in zip(*check_pairs(gold, predictions), strict=True)]
    sizes, right = Counter[Any](), Counter[Any]()
    for gold_set, predicted_set in pairs:
        sizes.update(gold_set)
        sizes.update(predicted_set)
        right.update(gold_set & predicted_set)
    scores = [ratio(2 * right[label], size) for label, size in sizes.items()]
    return {
        "f1_micro": ratio(2 * right.total(), sizes.total()),
        "f1_macro": ratio(math.fsum(scores), len(scores)),
        "exact_match": sum(gold_set == predicted_set for gold_set, predicted_set in pairs) / len(pairs),
    }


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


def _find_classes(counts: Counter[tuple[Any, Any]]) -> set[Any]:
    gold = {g for g, _ in counts}
    return gold | {p for _, p in counts if p != NO_LABEL}


def _f1(counts: Counter[tuple[Any, Any]], label: Any) -> float:
    right = counts[label, label]
    return ratio(2 * right, sum(n * ((g == label) + (p == label)) for (g, p), n in counts.items()))


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
    if isinstance(gold, bool) or not isinstance(gold, numbers.Integral) or not 0 <= int(gold) < len(values):
        raise DataError(f"gold {index} is {gold!r:.40}; expected the index of one of {len(values)} options, from 0")
    return all(values[gold] > value for i, value in enumerate(values) if i != gold)


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
