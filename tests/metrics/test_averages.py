"""The averages of GLUE and SuperGLUE, against numbers as published."""

from typing import Any

import pytest

from pretune.metrics import GLUE, SUPERGLUE, collect_suite_scores, compute_suite_averages
from pretune.metrics.classification import accuracy_f1

# BERT-large as GLUE's leaderboard has it, score 80.5.
LARGE = {
    "cola": 60.5,
    "sst2": 94.9,
    "mrpc": {"f1": 89.3, "accuracy": 85.4},
    "stsb": {"pearson": 87.6, "spearman": 86.5},
    "qqp": {"f1": 72.1, "accuracy": 89.3},
    "mnli": {"matched": 86.7, "mismatched": 85.9},
    "qnli": 92.7,
    "rte": 70.1,
    "wnli": 65.1,
}
# Two rows as SuperGLUE's leaderboard has them: BERT-large, score 69.0, and Bort, score 74.1.
LARGER = {
    "boolq": 77.4,
    "cb": {"f1": 75.7, "accuracy": 83.6},
    "copa": 70.6,
    "multirc": {"f1a": 70.0, "exact_match": 24.1},
    "record": {"f1": 72.0, "exact_match": 71.3},
    "rte": 71.7,
    "wic": 69.6,
    "wsc": 64.4,
}
BORT = {
    "boolq": 83.7,
    "cb": {"f1": 81.9, "accuracy": 86.5},
    "copa": 89.6,
    "multirc": {"f1a": 83.7, "exact_match": 54.1},
    "record": {"f1": 49.8, "exact_match": 49.0},
    "rte": 81.2,
    "wic": 70.1,
    "wsc": 65.8,
}


def as_reported(scores: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Scores as runs report them: two scores with their mean first, MNLI as two tasks."""
    rows = {task: score if isinstance(score, dict) else {"score": score} for task, score in scores.items()}
    if "mnli" in rows:
        rows["mnli_mismatched"] = {"accuracy": rows["mnli"]["mismatched"]}
        rows["mnli"] = {"accuracy": rows["mnli"]["matched"]}
    return {task: {"average": sum(row.values()) / len(row), **row} for task, row in rows.items()}


def test_the_published_averages() -> None:
    assert [*LARGE] == [*GLUE] and [*BORT] == [*SUPERGLUE]
    assert round(compute_suite_averages(as_reported(LARGE))["glue"], 1) == 80.5
    assert round(compute_suite_averages(as_reported(LARGER))["superglue"], 1) == 69.0
    assert round(compute_suite_averages(as_reported(BORT))["superglue"], 1) == 74.1


def test_scores_as_the_metrics_give_them() -> None:
    both = accuracy_f1([1, 0, 1], [1, 0, 0])
    assert collect_suite_scores("glue", {"mrpc": both}) == {"mrpc": both["average"]}
    assert both["average"] == pytest.approx((both["accuracy"] + both["f1"]) / 2)


def test_an_incomplete_suite_has_no_average() -> None:
    scores = {task: score for task, score in LARGE.items() if task not in ("rte", "wnli")}
    assert compute_suite_averages(as_reported(scores)) == {}
    assert len(collect_suite_scores("glue", as_reported(scores))) == 7
