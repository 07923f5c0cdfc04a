"""The averages of GLUE and SuperGLUE (Wang et al., 2018 and 2019) and of STS 2012 to 2016: each task counts once.

A task with two scores is their mean first: accuracy and F1 (MRPC, QQP, CB), both correlations (STS-B), F1a and exact
match (MultiRC), F1 and exact match (ReCoRD), matched and mismatched (MNLI). The diagnostic sets count in neither.

    glue({"mnli": {"matched": 0.867, "mismatched": 0.859}, "cola": 0.605, …})

A year of STS counts by its Spearman correlation over all pairs.

NOTE: BERT's paper prints another number, without WNLI, with MNLI's halves as two tasks and one score for the others.
"""

import math
from collections.abc import Iterable, Mapping

from pretune.core.errors import UsageError, suggest

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
SUPERGLUE = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")

STS = ("sts12", "sts13", "sts14", "sts15", "sts16")
SUITES = {"glue": GLUE, "superglue": SUPERGLUE, "sts12-16": STS}


def compute_suite_averages(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the average of each suite all of whose tasks are there, by the scores that tasks are reported with.

    MNLI's two halves may be `mnli` and `mnli_mismatched`; RTE of SuperGLUE is `superglue_rte`, or `rte`.
    """
    found: dict[str, float] = {}
    for suite, tasks in SUITES.items():
        members = collect_suite_scores(suite, scores)
        if len(members) == len(tasks):
            found[suite] = math.fsum(members.values()) / len(members)
    return found


def collect_suite_scores(suite: str, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the one number of each task of a suite that is there.

    >>> collect_suite_scores("glue", {"cola": {"matthews": 0.5}, "stsb": {"pearson": 0.8, "spearman": 0.7}, "sts12": {}})
    {'cola': 0.5, 'stsb': 0.75}
    """
    found: dict[str, float] = {}
    for task in SUITES[suite]:
        name = "superglue_rte" if (suite, task) == ("superglue", "rte") and "superglue_rte" in scores else task
        if name not in scores:
            continue
        found[task] = _get_official_score(scores[name], correlations=suite != "sts12-16")
        if task == "mnli" and "mnli_mismatched" in scores:
            found[task] = (found[task] + _get_official_score(scores["mnli_mismatched"])) / 2
    return found


def _get_official_score(score: Mapping[str, float], *, correlations: bool = True) -> float:
    """A task's one number: its "average", the mean of both correlations, or its first score."""
    if "average" in score:
        return float(score["average"])
    if correlations and {"pearson", "spearman"} <= score.keys():
        return (score["pearson"] + score["spearman"]) / 2
    return float(score["spearman"] if "spearman" in score else next(iter(score.values())))


def glue(scores: Mapping[str, float | Mapping[str, float]], *, tasks: Iterable[str] = GLUE) -> float:
    """GLUE's score: the mean over its nine tasks; `tasks` leaves some out on purpose (say so where you print it).

    >>> round(glue({"cola": 0.5, "mrpc": {"accuracy": 0.8, "f1": 0.9}}, tasks=["cola", "mrpc"]), 4)
    0.675
    """
    return _mean("GLUE", scores, [*tasks], GLUE)


def superglue(scores: Mapping[str, float | Mapping[str, float]], *, tasks: Iterable[str] = SUPERGLUE) -> float:
    """SuperGLUE's score: the mean over its eight tasks; `tasks` leaves some out on purpose."""
    return _mean("SuperGLUE", scores, [*tasks], SUPERGLUE)


def compute_task_score(score: float | Mapping[str, float]) -> float:
    """A task's one number: its "average" where it has one, else the mean of all its scores.

    >>> compute_task_score({"matched": 0.5, "mismatched": 0.75})
    0.625
    """
    if not isinstance(score, Mapping):
        return float(score)
    if "average" in score:
        return float(score["average"])
    return math.fsum(score.values()) / len(score)


def _mean(
    name: str, scores: Mapping[str, float | Mapping[str, float]], tasks: list[str], suite_tasks: tuple[str, ...]
) -> float:
    for task in tasks or [""]:
        if task not in suite_tasks:
            raise UsageError(
                f"'{task[:60]}' is no task of {name}{suggest(task, suite_tasks)} (its tasks: {', '.join(suite_tasks)})"
            )
    missing = [task for task in tasks if task not in scores]
    if missing:
        raise UsageError(f"{name}: no score of {', '.join(missing)}; run them, or name the tasks to average by tasks=…")
    return math.fsum(compute_task_score(scores[task]) for task in tasks) / len(tasks)
