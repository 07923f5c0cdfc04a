"""Metrics: pure functions on numbers and strings, without torch; this table is the only list of their names.

A metric is a function of `(gold, predictions)`, two sequences of the same length, and returns a float or several by
name, the headline first. All scores are fractions: 1 is perfect, and reports multiply by 100 (BLEU too); only the mean
squared error is in the squared unit of the scores.

    METRICS.get("matthews")([1, 0, 1, 0], [1, 0, 1, 1])     # 0.577…
    METRICS.get("squad")([["Denver Broncos"]], ["the Broncos"])  # {'f1': 0.667, 'exact_match': 0.0}

No metric is ever NaN: undefined values are 0, as each docstring states, and an empty input is an error.

In the averages of GLUE and SuperGLUE (Wang et al., 2018 and 2019) and of STS 2012 to 2016 each task counts once. A task
with two scores counts by their mean: accuracy and F1 (MRPC, QQP, CB), both correlations (STS-B), F1a and exact match
(MultiRC), F1 and exact match (ReCoRD), matched and mismatched (MNLI). The diagnostic sets are not included. A year of
STS counts by its Spearman correlation over all pairs.

NOTE: BERT's paper prints another average: without WNLI, MNLI as two tasks, and one score for the others.

Input validation of metrics: two sequences of the same length, no missing values, one type of label.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pretune.core.errors import DataError
from pretune.core.registry import Registry

Score = float | dict[str, float]
"""Result of a metric: one number, or several by name, the headline first."""

Metric = Callable[..., Score]
"""Function of `(gold, predictions)`; further settings are keyword arguments with defaults."""

METRICS: Registry[Metric] = Registry(
    "metric",
    {
        "accuracy": "pretune.metrics.classification:accuracy",
        "f1": "pretune.metrics.classification:f1",
        "f1_macro": "pretune.metrics.classification:f1_macro",
        "f1_micro": "pretune.metrics.classification:f1_micro",
        "multilabel_f1": "pretune.metrics.classification:multilabel_f1",
        "matthews": "pretune.metrics.classification:matthews",
        "accuracy_f1": "pretune.metrics.classification:accuracy_f1",
        "accuracy_f1_macro": "pretune.metrics.classification:accuracy_f1_macro",
        "pearson": "pretune.metrics.numeric:pearson",
        "spearman": "pretune.metrics.numeric:spearman",
        "pearson_spearman": "pretune.metrics.numeric:pearson_spearman",
        "mean_squared_error": "pretune.metrics.numeric:mean_squared_error",
        "choice_accuracy": "pretune.metrics.classification:choice_accuracy",
        "calibration_error": "pretune.metrics.classification:calibration_error",
        "exact_match": "pretune.metrics.question_answering:exact_match",
        "squad": "pretune.metrics.question_answering:squad",
        "squad2": "pretune.metrics.question_answering:squad2",
        "triviaqa": "pretune.metrics.question_answering:triviaqa",
        "coqa": "pretune.metrics.question_answering:coqa",
        "answer_f1": "pretune.metrics.question_answering:answer_f1",
        "record": "pretune.metrics.question_answering:record",
        "multirc": "pretune.metrics.classification:multirc",
        "gender_parity": "pretune.metrics.classification:gender_parity",
        "tag_accuracy": "pretune.metrics.entities:tag_accuracy",
        "entity_f1": "pretune.metrics.entities:entity_f1",
        "entity_f1_strict": "pretune.metrics.entities:entity_f1_strict",
        "argument_f1": "pretune.metrics.entities:argument_f1",
        "attachment": "pretune.metrics.entities:attachment",
        "coreference": "pretune.metrics.coreference:coreference",
        "rouge": "pretune.metrics.generation:rouge",
        "rouge_l": "pretune.metrics.generation:rouge_l",
        "rouge_stemmed": "pretune.metrics.generation:rouge_stemmed",
        "bleu": "pretune.metrics.generation:bleu",
        "chrf": "pretune.metrics.generation:chrf",
        "ndcg": "pretune.metrics.numeric:ndcg",
        "mrr": "pretune.metrics.numeric:mrr",
        "recall": "pretune.metrics.numeric:recall",
        "exact": "pretune.metrics.rewards:exact",
        "number": "pretune.metrics.rewards:number",
        "regex": "pretune.metrics.rewards:regex",
    },
    group="pretune.metrics",
)

METRIC_INPUTS: Mapping[str, str] = {
    name: values
    for values, names in {
        "values": ("pearson", "spearman", "pearson_spearman", "mean_squared_error"),
        "groups": ("multirc", "gender_parity"),
        "scores": ("choice_accuracy",),
        "probabilities": ("calibration_error",),
        "tags": ("tag_accuracy", "entity_f1", "entity_f1_strict", "argument_f1", "multilabel_f1"),
        "trees": ("attachment",),
        "clusters": ("coreference",),
        "answers": ("squad", "squad2", "exact_match", "triviaqa", "coqa", "answer_f1", "record"),
        "texts": ("rouge", "rouge_l", "rouge_stemmed", "bleu", "chrf", "exact", "number", "regex"),
    }.items()
    for name in names
}
"""Values that a metric compares, if they are not labels."""

GROUP_METRICS = frozenset(name for name, values in METRIC_INPUTS.items() if values == "groups")
"""Metrics whose unit is a group of examples: a subset must not split a group."""

SHARE_METRICS = frozenset({"accuracy", "choice_accuracy", "exact_match", "exact", "number", "regex"})
"""Metrics that are the share of correct examples."""

MEAN_METRICS = SHARE_METRICS | {"squad", "squad2", "triviaqa", "coqa", "answer_f1", "rouge", "rouge_l", "rouge_stemmed"}
"""Metrics that are the mean of the scores of single examples."""

SIGNED_METRICS = frozenset({"matthews", "pearson", "spearman", "pearson_spearman", "average"})
"""Metrics that may be negative."""

NO_ANSWER_METRICS = frozenset({"squad2"})
"""Metrics for questions that may have no answer; they take the scores of that as `no_answer`."""

LOWER_IS_BETTER = frozenset({"calibration_error", "mean_squared_error"})
"""Metrics for which lower is better (0 is perfect); for all others 1 is perfect."""


def get_headline(score: float | Mapping[str, float]) -> float:
    """Return the headline of a score: the number itself, or the first of several.

    >>> get_headline({"average": 0.5, "accuracy": 0.75, "f1": 0.25})
    0.5
    """
    return float(next(iter(score.values())) if isinstance(score, Mapping) else score)


GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
SUPERGLUE = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")

STS = ("sts12", "sts13", "sts14", "sts15", "sts16")
SUITES = {"glue": GLUE, "superglue": SUPERGLUE, "sts12-16": STS}


def compute_suite_averages(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the average of each complete suite, from the reported scores of tasks.

    MNLI may be split into `mnli` and `mnli_mismatched`; RTE of SuperGLUE is `superglue_rte` or `rte`.
    """
    averages: dict[str, float] = {}
    for suite, tasks in SUITES.items():
        members = collect_suite_scores(suite, scores)
        if len(members) == len(tasks):
            averages[suite] = math.fsum(members.values()) / len(members)
    return averages


def collect_suite_scores(suite: str, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the official score of each available task of a suite.

    >>> scores = {"cola": {"matthews": 0.5}, "stsb": {"pearson": 0.8, "spearman": 0.7}, "sts12": {}}
    >>> collect_suite_scores("glue", scores)
    {'cola': 0.5, 'stsb': 0.75}
    """
    members: dict[str, float] = {}
    for task in SUITES[suite]:
        name = "superglue_rte" if (suite, task) == ("superglue", "rte") and "superglue_rte" in scores else task
        if name not in scores:
            continue
        members[task] = _get_official_score(scores[name], correlations=suite != "sts12-16")
        if task == "mnli" and "mnli_mismatched" in scores:
            members[task] = (members[task] + _get_official_score(scores["mnli_mismatched"])) / 2
    return members


def _get_official_score(score: Mapping[str, float], *, correlations: bool = True) -> float:
    """Return the official score of a task: its "average", the mean of both correlations, or its first score."""
    if "average" in score:
        return float(score["average"])
    if correlations and {"pearson", "spearman"} <= score.keys():
        return (score["pearson"] + score["spearman"]) / 2
    return float(score["spearman"] if "spearman" in score else next(iter(score.values())))


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
