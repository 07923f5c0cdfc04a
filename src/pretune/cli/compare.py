"""`pretune compare`: run a study and write its table, plots and verdicts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pretune.cli import shut_down_cleanly
from pretune.cli._options import AsJson, DeviceName, TaskData, argument, option
from pretune.cli._output import find_free_path, hint
from pretune.core import log
from pretune.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretune.studies.plan import Plan


def complete_studies(incomplete: str = "") -> list[str]:
    """Complete the names of built-in studies."""
    from pretune.studies import list_study_files

    return [name for name in list_study_files() if name.startswith(incomplete)]


def compare(
    study: Annotated[
        str, argument("STUDY", "A built-in study (`pretune list studies`), or a YAML file.", complete_studies)
    ],
    out: Annotated[Path | None, option("--out DIR", "Output directory of the study.")] = None,
    scale: Annotated[
        str,
        option(
            "--scale NAME",
            "class (minutes on two cores), gpu (minutes on one GPU), full (the paper's sizes).",
            lambda incomplete: [name for name in SCALES if name.startswith(incomplete)],
        ),
    ] = "class",
    dry_run: Annotated[bool, option("--dry-run", "Print cells, steps, cost and time; compute nothing.")] = False,
    seeds: Annotated[int | None, option("--seeds N", "Number of seeds (default: that of the scale).")] = None,
    jobs: Annotated[
        int | None,
        option("--jobs N", "Steps that run side by side (default: by the memory of the GPU; one per core on a CPU)."),
    ] = None,
    shard: Annotated[
        str | None, option("--shard I/N", "Run only the cells of one of N shards, each with its own --out.")
    ] = None,
    merge: Annotated[
        list[Path] | None,
        option("--merge DIR", "Combine the --out of a shard into --out; runs nothing. Repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        option("--set PATH=VALUE", "Change a setting of all rows: pretrain.train.lr=1e-3. Repeatable."),
    ] = None,
    data: TaskData = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Compare models in a study: table, significance, verdicts.

    Example: pretune compare masking-rate --scale class --out runs/masking-rate
    """
    from pretune.core.config import parse_assignments

    with shut_down_cleanly():  # imports take seconds
        from pretune.runs.finetune.task_data import reuse_tasks
        from pretune.studies.compare import build_plan
    if out is None and not dry_run:
        raise UsageError("missing option '--out': the output directory of the study")
    options: dict[str, Any] = {"data": data, "device": device}
    with reuse_tasks():
        plan = build_plan(study, scale=scale, seeds=seeds, overrides=parse_assignments(settings or []), **options)
        if dry_run or out is None:
            _show_plan(plan, study, as_json)
        else:
            _run_plan(plan, study, out, as_json, {"jobs": jobs, "shard": shard, "merge": merge or (), **options})


def _show_plan(plan: "Plan", study: str, as_json: bool) -> None:
    if as_json:
        log.print_json(plan.to_dict())
    else:
        log.print_result("\n".join(format_plan(plan)))
    for problem in plan.missing:
        log.warn(f"missing {problem}")
    out = find_free_path(f"runs/{plan.study.name}")
    hint("compare", study, "--scale", plan.scale_name, "--out", out, silent=as_json)


def _run_plan(plan: "Plan", study: str, out: Path, as_json: bool, options: dict[str, Any]) -> None:
    from pretune.studies.compare import run_plan

    if not plan.missing:
        for line in format_plan(plan):
            log.info(line)
    with shut_down_cleanly():
        result = run_plan(plan, out=out, **options)
    if as_json:
        log.print_json(result.results)
    else:
        log.print_result("\n".join(format_results(result.results)))
    log.info(f"page: {result.page}")
    scales = {entry.name for entry in plan.study.scales}
    larger_scale = next((name for name in SCALES[SCALES.index(plan.scale_name) + 1 :] if name in scales), None)
    if larger_scale is None:
        hint("list", "studies", silent=as_json)
    else:
        hint("compare", study, "--scale", larger_scale, "--dry-run", silent=as_json)


SCALES = ("class", "gpu", "full")


def format_plan(plan: "Plan") -> "Iterator[str]":
    """Yield the lines of a plan: question, rows, steps, cost and time."""
    from pretune.core.log import format_count, format_duration, format_number
    from pretune.core.table import align_columns
    from pretune.models.devices import DEVICES
    from pretune.reports.study_text import ACTION_NAMES
    from pretune.studies.plan import STEP_NOUNS

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
        keys = plan.collect_inputs([key for reading in cell.readings.values() for key in reading.keys])
        estimates = [plan.steps[key].estimate for key in keys]
        runs = [plan.steps[key].estimate for key in keys if plan.steps[key].action == "pretrain"]
        flops = max((estimate.flops for estimate in runs), default=0)
        other_flops = sum(plan.steps[key].estimate.flops for key in keys if plan.steps[key].action != "pretrain")
        table.append(
            (
                row.name,
                format_number(max((estimate.parameters for estimate in estimates), default=0)),
                format_number(max((estimate.tokens for estimate in runs), default=0)),
                format_number(flops, billion="G"),
                format_number(other_flops, billion="G"),
                format_duration(sum(estimate.seconds for estimate in estimates)),
            )
        )
    yield "one seed of each row:"
    yield from align_columns(table, right=True)
    yield ""
    for action, count in plan.count_actions().items():
        seconds = sum(step.estimate.seconds for step in plan.steps.values() if step.action == action)
        yield f"  {count:>4}  {STEP_NOUNS[action]}, {format_duration(seconds)}"
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


def format_results(results: "Mapping[str, Any]") -> "Iterator[str]":
    """Yield the table of a study, and its verdicts."""
    from pretune.core.table import align_columns
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
