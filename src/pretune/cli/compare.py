"""`pretune compare`: run a study and write its table, plots and verdicts."""

from typing import TYPE_CHECKING

from pretune.cli import shut_down_cleanly
from pretune.cli._options import OutputFormat
from pretune.cli._output import find_free_path, hint, print_facts
from pretune.core import log
from pretune.core.api import Options, option, option_set, require_out
from pretune.core.log import align_columns, format_count, format_duration, format_number
from pretune.studies.options import SCALES, CompareOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretune.reports.study_record import StudyResults
    from pretune.studies.plan import Plan


@option_set
class CompareMode(Options):
    """Extent of a study."""

    dry_run: bool = option("--dry-run", "Print cells, steps, cost and time; compute nothing.", default=False)


def compare(options: CompareOptions, mode: CompareMode, output: OutputFormat) -> None:
    """Compare models in a study: table, significance, verdicts.

    Example: pretune compare labels --scale class --out runs/labels
    """
    with shut_down_cleanly():  # imports take seconds
        from pretune.runs.finetune.task_data import reuse_tasks
        from pretune.studies.compare import build_plan
    if not mode.dry_run:
        require_out(options.out, "study")
    with reuse_tasks():
        plan = build_plan(options)
        if mode.dry_run:
            _show_plan(plan, output)
        else:
            _run_plan(plan, options, output)


def _show_plan(plan: "Plan", output: OutputFormat) -> None:
    print_facts(output, plan.to_dict(), "\n".join(format_plan(plan)))
    for problem in plan.missing:
        log.warn(f"missing {problem}")
    out = find_free_path(f"runs/{plan.study.name}")
    hint("compare", plan.source, "--scale", plan.scale_name, "--out", out, silent=output.as_json)


def _run_plan(plan: "Plan", options: CompareOptions, output: OutputFormat) -> None:
    from pretune.studies.compare import run_plan

    if not plan.missing:
        for line in format_plan(plan):
            log.info(line)
    with shut_down_cleanly():
        result = run_plan(plan, options)
    print_facts(output, result.results, "\n".join(format_results(result.results)))
    log.info(f"page: {result.page}")
    scales = {entry.name for entry in plan.study.scales}
    larger_scale = next((name for name in SCALES[SCALES.index(plan.scale_name) + 1 :] if name in scales), None)
    larger = ("compare", options.study, "--scale", larger_scale, "--dry-run")
    hint(*(("list", "studies") if larger_scale is None else larger), silent=output.as_json)


def format_plan(plan: "Plan") -> "Iterator[str]":
    """Yield the lines of a plan: question, rows, steps, cost and time."""
    from pretune.models.devices import DEVICES
    from pretune.reports.study_text import ACTION_NAMES
    from pretune.studies.plan import ACTIONS

    study, total = plan.study, plan.sum_estimates()
    yield f"{study.title} ({study.name}, scale {plan.scale_name})"
    if study.paper.citation:
        yield study.paper.citation
    cells = format_count(len(plan.cells), "cells")
    yield f"{cells}: {format_count(len(plan.rows), 'rows')} x {format_count(len(plan.seeds), 'seeds')}"
    yield ""
    table: list[tuple[str, ...]] = [("row", "parameters", "tokens", "pre-training FLOPs", "other FLOPs", "time")]
    for row in plan.rows:
        cell = next(cell for cell in plan.cells if cell.row == row.name)
        steps = [plan.steps[key] for key in plan.list_steps([cell])]
        runs = [step.estimate for step in steps if step.action == "pretrain"]
        columns = (
            row.name,
            format_number(max((step.estimate.parameters for step in steps), default=0)),
            format_number(max((estimate.tokens for estimate in runs), default=0)),
            format_number(max((estimate.flops for estimate in runs), default=0), billion="G"),
            format_number(sum(step.estimate.flops for step in steps if step.action != "pretrain"), billion="G"),
            format_duration(sum(step.estimate.seconds for step in steps)),
        )
        table.append(columns)
    yield "one seed of each row:"
    yield from align_columns(table, right=True)
    yield ""
    plurals = {action.name: action.plural for action in ACTIONS.values()}
    for action, count in plan.count_actions().items():
        seconds = sum(step.estimate.seconds for step in plan.steps.values() if step.action == action)
        yield f"  {count:>4}  {plurals[action]}, {format_duration(seconds)}"
    cost = f"{format_number(total.flops, billion='G')}FLOP, {format_duration(total.seconds)}"
    place = f"on {plan.device}" if plan.device != "cpu" else f"of one core, {format_duration(total.seconds / 2)} of two"
    yield f"all: {format_count(len(plan.steps), 'steps')}, {cost} {place}"
    times = [f"{name} {format_duration(total.flops / entry.rate)}" for name, entry in DEVICES.items()]
    yield f"arithmetic alone: {', '.join(times)}"
    names = " and ".join(ACTION_NAMES[action] for action in plan.tuned_actions)
    rest = "" if plan.is_tuned else "; others: defaults of the papers"
    yield "learning rates: " + (
        f"of {names} tuned per cell on dev{rest}" if names else "not tuned; defaults of the papers"
    )


def format_results(results: "StudyResults") -> "Iterator[str]":
    """Yield the table of a study, and its verdicts."""
    from pretune.reports.study_text import format_difference, format_marks, format_tuning, format_verdict, list_rows

    yield from align_columns(
        [("", *(measure["name"] for measure in results["measures"])), *list_rows(results)], right=True
    )
    yield ""
    for claim in results["claims"]:
        difference = format_difference(claim)
        detail = f": {difference}" if difference else ""
        yield f"{format_verdict(results, claim)}: {claim['text'].rstrip('.')} ({claim['measure']}{detail})"
    if mark_note := format_marks(results):
        yield mark_note
    yield format_tuning(results)
