"""`pt.compare` and `pretune compare`: plan a study, run its steps, write its results.

result = pt.compare("labels", out="runs/labels")
result.verdicts, result.page
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretune.core import io, log
from pretune.core.api import Result, require_out, take_options
from pretune.core.errors import DataError, PretuneError, UsageError, suggest
from pretune.core.run_dir import RunLock
from pretune.reports.study import render_study_page
from pretune.reports.study_record import StudyResults
from pretune.reports.study_text import render_study_text
from pretune.runs.finetune.task_data import reuse_tasks
from pretune.studies.execute import Execution, StepFailure
from pretune.studies.options import SCALES, CompareOptions
from pretune.studies.plan import Plan
from pretune.studies.planner import plan_study
from pretune.studies.read import load_study
from pretune.studies.results import build_results
from pretune.studies.schedule import choose_jobs, list_shard_cells, parse_shard
from pretune.studies.settings import read_settings
from pretune.studies.spec import check_name
from pretune.studies.study_dir import StudyDir
from pretune.training.distributed import resolve_device

MAX_JOBS = 64


@dataclass(frozen=True, slots=True, repr=False)
class StudyResult(Result, os.PathLike[str]):
    """Result of a study: its directory, and the content of study.json."""

    path: Path
    results: StudyResults

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        verdicts = ", ".join(dict.fromkeys(self.verdicts.values()))
        return f"StudyResult({str(self.path)!r}, rows={len(self.results['rows'])}, verdicts=[{verdicts}])"

    @property
    def page(self) -> Path:
        """The page study.html."""
        return StudyDir(self.path).page

    @property
    def table(self) -> dict[str, dict[str, float]]:
        """Means over seeds, by row and measure."""
        return {
            row: {name: cell["mean"] for name, cell in cells.items()} for row, cells in self.results["table"].items()
        }

    @property
    def verdicts(self) -> dict[str, str]:
        """Verdict of every claim, by its text and measure."""
        return {f"{claim['text']} ({claim['measure']})": claim["outcome"] for claim in self.results["claims"]}

    def to_dict(self) -> dict[str, Any]:
        """Return the path and the results as plain data."""
        return {"path": str(self.path), **self.results}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table: means, and their intervals."""
        rows = []
        for name, cells in self.results["table"].items():
            row: dict[str, object] = {"row": name}
            for measure, cell in cells.items():
                row[measure] = cell["mean"]
                if cell["low"] is not None:
                    row |= {f"{measure}.low": cell["low"], f"{measure}.high": cell["high"]}
            rows.append(row)
        return rows


@take_options(CompareOptions, required_names=["study", "out"])
def compare(options: CompareOptions) -> StudyResult:
    """Run a study and write its table, plots and verdicts to `out`; finished steps in `out` are not run again.

    Args:
        study: A built-in study (`pt.list_studies`), or a YAML file.
        out: Output directory: study.html, study.md and study.json.
        scale: "class" (minutes on two cores; few studies), "gpu" (minutes on one GPU), "full" (the paper's sizes).
        seeds: Number of seeds; None: that of the scale.
        jobs: Steps that run side by side; None: by the memory of the GPU, on a CPU one per core.
        shard: "i/n" runs only the cells of shard i of n; the directories are combined by `merge`.
        row: Rows whose cells are run; none: all.
        merge: Directories of shards whose results are combined in `out`; nothing is run.
        share: Directories of other studies, whose finished steps with the same key are not run again.
        overrides: Settings of all rows by path, such as {"pretrain.train.lr": 1e-3}.
        data: Directory of task data and corpora; None: $PRETUNE_DATA.
        device: "cpu" or "cuda"; None: a GPU if available.

    Returns:
        The result: `result.table`, `result.verdicts`, `result.page`, `result.to_dict()`.

    Raises:
        UsageError: an invalid study or argument, before anything is computed.
        DataError: a missing data set, before anything is computed.
        PretuneError: the error of a failed cell, after all others are finished.
    """
    with reuse_tasks():
        return run_plan(build_plan(options), options)


def build_plan(options: CompareOptions) -> Plan:
    """Return the plan of a study by name or file; a plan for GPUs is one for an H200 where there is no GPU."""
    scale, seeds, device = options.scale, options.seeds, options.device
    if scale not in SCALES:
        raise UsageError(f"unknown scale '{scale[:40]}'{suggest(scale, SCALES)} (allowed: {', '.join(SCALES)})")
    if seeds is not None and not 1 <= seeds <= 100:
        raise UsageError(f"--seeds {seeds} must be from 1 to 100")
    study, settings = load_study(options.study), read_settings(options.overrides or {}, "--set")
    target = "cuda" if device is None and scale != "class" else resolve_device(device)
    with reuse_tasks():
        plan = plan_study(study, scale, device=target, data=options.data, seeds=seeds, overrides=settings)
    return replace(plan, source=options.study)


def run_plan(plan: Plan, options: CompareOptions) -> StudyResult:
    """Run the steps of a plan, or combine those of shards, and write the results."""
    if options.jobs is not None and not 1 <= options.jobs <= MAX_JOBS:
        raise UsageError(f"--jobs {options.jobs} must be from 1 to {MAX_JOBS}")
    if options.shard is not None and options.merge:
        raise UsageError("--shard and --merge exclude each other; merge when all shards are finished")
    if plan.missing and not options.merge:
        raise DataError(f"missing {plan.missing[0]}")
    cells = plan.cells if options.shard is None else list_shard_cells(plan, *parse_shard(options.shard))
    for name in options.row:
        check_name("--row", name, [row.name for row in plan.rows], "row")
    if options.row:
        cells = [cell for cell in cells if cell.row in options.row]
    study_dir = StudyDir(require_out(options.out), options.share)
    study_dir.check_free()
    data = None if options.data is None else os.fspath(options.data)
    execution = Execution(plan, study_dir, plan.list_steps(cells), device=options.device, data=data)
    with RunLock(study_dir.path, on_warning=log.warn), reuse_tasks():
        if options.merge:
            count = study_dir.merge(options.merge, plan)
            log.info(f"{count} finished steps of {len(options.merge)} directories")
            study_dir.write_plan(plan)
            execution.records |= study_dir.read_records(plan)
        else:
            if options.share:
                count = study_dir.merge(options.share, plan)
                log.info(f"{count} finished steps of other studies")
            study_dir.write_plan(plan)
            execution.jobs = choose_jobs(plan, options.device) if options.jobs is None else options.jobs
            execution.run()
        return _write_results(plan, study_dir, execution, is_part=options.shard is not None or bool(options.row))


def _write_results(plan: Plan, study_dir: StudyDir, execution: Execution, *, is_part: bool) -> StudyResult:
    """Write study.json, study.md and study.html; then raise the error of a failed step, if any."""
    results = build_results(plan, execution.records, execution.failures)
    io.write_json(study_dir.results, results)
    io.atomic_write(study_dir.text, render_study_text(results))
    io.atomic_write(study_dir.page, render_study_page(results))
    if results["missing"] and not execution.failures and not is_part:
        log.warn(f"{len(results['missing'])} of {len(plan.cells)} cells are not finished")
    if execution.failures:
        raise _summarize_failures(execution.failures, study_dir)
    return StudyResult(study_dir.path, results)


def _summarize_failures(failures: Mapping[str, StepFailure], study_dir: StudyDir) -> PretuneError:
    """Return the error of the first failed step, which also counts the others."""
    first = next(iter(failures.values()))
    if first.error.kind is None:
        first.error.throw()  # a bug, with its traceback
    other_count = len({failure.step.key for failure in failures.values()}) - 1
    more = f" (and {other_count} more failed steps)" if other_count else ""
    return first.error.kind(f"{first.step.label}: {first.message}{more}; the other results are in {study_dir.page}")
