"""The averages of GLUE and SuperGLUE, against numbers as published."""

import pytest

from pretune.core.errors import UsageError
from pretune.metrics.averages import GLUE, SUPERGLUE, glue, superglue
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


def test_the_published_averages() -> None:
    assert [*LARGE] == [*GLUE] and [*BORT] == [*SUPERGLUE]
    assert round(glue(LARGE), 1) == 80.5
    assert round(superglue(LARGER), 1) == 69.0
    assert round(superglue(BORT), 1) == 74.1


def test_without_wnli() -> None:
    tasks = [task for task in GLUE if task != "wnli"]
    assert glue(LARGE, tasks=tasks) == pytest.approx((9 * glue(LARGE) - 65.1) / 8)


def test_scores_as_the_metrics_give_them() -> None:
    both = accuracy_f1([1, 0, 1], [1, 0, 0])
    assert glue({"mrpc": both}, tasks=["mrpc"]) == both["average"] == pytest.approx((both["accuracy"] + both["f1"]) / 2)


def test_a_missing_or_unknown_task_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"GLUE.*rte, wnli"):
        glue({task: score for task, score in LARGE.items() if task not in ("rte", "wnli")})
    with pytest.raises(UsageError, match=r"'colla'.*GLUE.*'cola'"):
        glue(LARGE, tasks=["colla"])
    with pytest.raises(UsageError, match="SuperGLUE"):
        superglue(BORT, tasks=[])
