"""Averages of GLUE and SuperGLUE (Wang et al., 2018 and 2019) and of STS 2012 to 2016: each task counts once.

A task with two scores counts by their mean: accuracy and F1 (MRPC, QQP, CB), both correlations (STS-B), F1a and exact
match (MultiRC), F1 and exact match (ReCoRD), matched and mismatched (MNLI). The diagnostic sets are not included.

A year of STS counts by its Spearman correlation over all pairs.

NOTE: BERT's paper prints another average: without WNLI, MNLI as two tasks, and one score for the others.
"""

import math
from collections.abc import Mapping

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
