"""Averages of GLUE, SuperGLUE and STS 2012 to 2016 over separate runs of one base and one method."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pretune.core.format import format_count
from pretune.metrics.averages import SUITES, collect_suite_scores, compute_suite_averages
from pretune.reports.load import RunRecord
from pretune.reports.markup import Markup, element, join, note, table

NAMES = {"glue": "GLUE", "superglue": "SuperGLUE", "sts12-16": "STS 2012 to 2016"}
Setting = tuple[str, str, str]
"""Base, method and number of training examples."""


def render_suites(runs: Sequence[RunRecord]) -> Markup:
    """Render a table for each suite with a run for every task; a note names missing tasks if at least half have one."""
    return join(part for suite in SUITES for part in _render_suite(suite, group_scores(runs)))


def group_scores(runs: Sequence[RunRecord]) -> dict[Setting, dict[str, Mapping[str, float]]]:
    """Return task scores by setting; of two runs of a task, the one with the better dev score counts."""
    best: dict[tuple[Setting, str], tuple[float, Mapping[str, float]]] = {}
    for run in (run for run in runs if run.scores):
        assert run.scores is not None
        result = run.scores["result"]
        dev = float(result.get("dev", 0.0))
        key = _describe_setting(run), str(run.scores["task"])
        if key not in best or dev > best[key][0]:
            best[key] = dev, result.get("scores") or {str(run.scores["metric"]): float(result["score"])}
    grouped_scores: dict[Setting, dict[str, Mapping[str, float]]] = {}
    for (setting, task), (_, scores) in best.items():
        grouped_scores.setdefault(setting, {})[task] = scores
    return grouped_scores


def _describe_setting(run: RunRecord) -> Setting:
    tree: Mapping[str, Any] = run.config
    base = str(tree["base"]["path"])
    weights = ", random weights" if tree["base"].get("weights") == "random" else ""
    limit = (tree.get("task") or {}).get("train_examples")
    return (
        f"{Path(base).name or base}{weights}",
        str(tree["method"]["kind"]),
        "" if limit is None else format_count(limit, "labels"),
    )


def _render_suite(suite: str, settings: Mapping[Setting, Mapping[str, Mapping[str, float]]]) -> Iterator[Markup]:
    tasks = SUITES[suite]
    members = {setting: collect_suite_scores(suite, scores) for setting, scores in settings.items()}
    complete = [
        (", ".join(filter(None, setting)), average, members[setting])
        for setting, scores in settings.items()
        if (average := compute_suite_averages(scores).get(suite)) is not None
    ]
    if complete:
        yield element("h3", f"{NAMES[suite]}: average of {len(tasks)} tasks")
        rows = sorted(complete, key=lambda row: -row[1])
        yield table(
            ("", "average", *tasks),
            [
                (name, f"{average:.4f}", *(f"{task_scores[task]:.4f}" for task in tasks))
                for name, average, task_scores in rows
            ],
            kind="scores",
        )
    for setting, task_scores in members.items():
        if len(tasks) / 2 <= len(task_scores) < len(tasks):
            missing = ", ".join(task for task in tasks if task not in task_scores)
            yield note(f"{', '.join(filter(None, setting))}: no {NAMES[suite]} average without {missing}.")
