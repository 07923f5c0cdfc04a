"""Metrics: pure functions on numbers and strings, without torch; this table is the only list of their names.

A metric is a function of `(gold, predictions)`, two sequences of the same length, and returns a float or several by
name, the headline first. All scores are fractions: 1 is perfect, and reports multiply by 100 (BLEU too); only the mean
squared error is in the squared unit of the scores.

    METRICS.get("matthews")([1, 0, 1, 0], [1, 0, 1, 1])     # 0.577…
    METRICS.get("squad")([["Denver Broncos"]], ["the Broncos"])  # {'f1': 0.667, 'exact_match': 0.0}

No metric is ever NaN: undefined values are 0, as each docstring states, and an empty input is an error.
"""

from collections.abc import Callable, Mapping
from typing import Any

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
        "record": "pretune.metrics.question_answering:record",
        "multirc": "pretune.metrics.classification:multirc",
        "gender_parity": "pretune.metrics.classification:gender_parity",
        "tag_accuracy": "pretune.metrics.entities:tag_accuracy",
        "entity_f1": "pretune.metrics.entities:entity_f1",
        "entity_f1_strict": "pretune.metrics.entities:entity_f1_strict",
        "attachment": "pretune.metrics.parsing:attachment",
        "rouge": "pretune.metrics.generation:rouge",
        "rouge_stemmed": "pretune.metrics.generation:rouge_stemmed",
        "bleu": "pretune.metrics.generation:bleu",
        "chrf": "pretune.metrics.generation:chrf",
        "ndcg": "pretune.metrics.retrieval:ndcg",
        "mrr": "pretune.metrics.retrieval:mrr",
        "recall": "pretune.metrics.retrieval:recall",
    },
)

METRIC_INPUTS: Mapping[str, str] = {
    name: values
    for values, names in {
        "values": ("pearson", "spearman", "pearson_spearman", "mean_squared_error"),
        "groups": ("multirc", "gender_parity"),
        "scores": ("choice_accuracy", "calibration_error"),
        "tags": ("tag_accuracy", "entity_f1", "entity_f1_strict", "multilabel_f1"),
        "trees": ("attachment",),
        "answers": ("squad", "squad2", "exact_match", "record"),
        "texts": ("rouge", "rouge_stemmed", "bleu", "chrf"),
    }.items()
    for name in names
}
"""Values that a metric compares, if they are not labels."""

GROUP_METRICS = frozenset(name for name, values in METRIC_INPUTS.items() if values == "groups")
"""Metrics whose unit is a group of examples: a subset must not split a group."""

MEAN_METRICS = frozenset({"accuracy", "choice_accuracy", "squad", "squad2", "exact_match", "rouge", "rouge_stemmed"})
"""Metrics that are the mean of the scores of single examples."""

SHARE_METRICS = frozenset({"accuracy", "choice_accuracy", "exact_match"})
"""Metrics that are the share of correct examples."""

SIGNED_METRICS = frozenset({"matthews", "pearson", "spearman", "pearson_spearman", "average"})
"""Metrics that may be negative."""

NO_ANSWER_METRICS = frozenset({"squad2"})
"""Metrics for questions that may have no answer; they take the scores of that as `no_answer`."""

LOWER_IS_BETTER = frozenset({"calibration_error", "mean_squared_error"})
"""Metrics for which lower is better (0 is perfect); for all others 1 is perfect."""


def get_headline(score: float | Mapping[str, Any]) -> float:
    """Return the headline of a score: the number itself, or the first of several.

    >>> get_headline({"average": 0.5, "accuracy": 0.75, "f1": 0.25})
    0.5
    """
    return float(next(iter(score.values())) if isinstance(score, Mapping) else score)
