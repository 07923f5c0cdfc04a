"""Report page: sections in order; empty ones are dropped. The page is `report.html`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pretune.core import io
from pretune.core.errors import UsageError, refuse_broken_link
from pretune.core.log import format_count, format_duration, format_kilograms
from pretune.reports import NO_MARKUP, Markup, Section, code, element, fill_page, join, place_figures, table, tiles
from pretune.reports.analysis import render_analyses
from pretune.reports.cost import render_commands, render_cost, render_data, sum_costs
from pretune.reports.errors import render_errors
from pretune.reports.facts import Facts
from pretune.reports.load import ComparisonResults, RunRecord, load_directory
from pretune.reports.runs import draw_label_curves, render_learning_curves, render_runs, render_samples
from pretune.reports.scores import (
    draw_label_chart,
    find_best_baseline,
    render_comparison,
    render_scores,
    render_suites,
)

MAX_TILES = 3
"""Maximum number of runs whose score is a headline."""


def report(runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write an HTML report of runs and results, in the given order; the same input gives the same bytes.

    A run is a directory of `pretune pretrain` or `pretune finetune`, finished or not. A directory with results.json
    (rows of method, labels, mean and seeds) is a comparison; the runs it lists are shown with it.
    """
    out_path = Path(out)
    if not runs:
        raise UsageError("no runs; pass at least one directory")
    if out_path.is_dir():
        raise UsageError(f"{out_path}: is a directory; set --out to a file, such as {out_path / 'report.html'}")
    refuse_broken_link(out_path)
    directories = [Path(run) for run in runs]
    loaded_records = [record for path in directories for record in load_directory(path)]
    run_records: dict[Path, RunRecord] = {}
    for record in loaded_records:
        if isinstance(record, RunRecord):
            run_records.setdefault(io.real_path(record.path), record)
    results = [record for record in loaded_records if isinstance(record, ComparisonResults)]
    io.atomic_write(out_path, render_page([*run_records.values()], results, directories, out_path, title).encode())
    return out_path


def render_page(
    runs: Sequence[RunRecord],
    results: Sequence[ComparisonResults],
    paths: Sequence[Path],
    out: Path,
    title: str | None = None,
) -> str:
    """Render the complete document."""
    titles = [title, *(result.metadata.get("title") for result in results)]
    names = " · ".join(record.name for record in (results or runs))
    story = join(element("p", line, kind="lead") for result in results for line in result.list_lines("story"))
    sections = _build_sections(runs, results, paths, out)
    return fill_page(next(filter(None, titles), names), story, tiles(_list_tiles(runs, results)), sections)


def _build_sections(
    runs: Sequence[RunRecord], results: Sequence[ComparisonResults], paths: Sequence[Path], out: Path
) -> list[Section]:
    tables = [render_comparison(result) for result in results]
    if not results or needs_run_scores(runs):
        tables += [render_scores(runs), render_suites(runs)]
    label_charts = [*map(draw_label_chart, results), *draw_label_curves(runs)]
    usage = [line for result in results for line in result.list_lines("use")]
    sections = [
        ("scores", "Scores", join(tables)),
        ("labels", "Training set size", place_figures(label_charts)),
        ("runs", "Runs", join([*map(_render_stages, results), render_runs(runs)])),
        ("learning", "Learning curves", render_learning_curves(runs)),
        ("errors", "Errors", render_errors(runs)),
        ("samples", "Samples during training", render_samples(runs)),
        ("analysis", "Inside the models", render_analyses([(run.name, run.analyses) for run in runs if run.analyses])),
        ("cost", "Cost", render_cost(runs, results)),
        ("data", "Data", render_data(runs, results)),
        ("use", "Usage", code(*usage) if usage else NO_MARKUP),
        ("reproduce", "Commands to reproduce", render_commands(runs, results, paths, out)),
    ]
    if not results and not any(run.scores for run in runs):  # only pre-training: runs come first
        sections = [*sections[2:], *sections[:2]]
    return sections


def needs_run_scores(runs: Sequence[RunRecord]) -> bool:
    """Return whether the scores of runs add to the table of a comparison they belong to."""
    run_scores = [run.scores for run in runs if run.scores]
    return len(run_scores) > 1 or any(scores["baselines"] for scores in run_scores)


def _render_stages(results: ComparisonResults) -> Markup:
    stages = results.metadata.get("stages")
    rows = []
    for stage in stages if isinstance(stages, list) else ():
        about = join([str(stage.get("about", "")), *(element("small", str(text)) for text in stage.get("notes") or ())])
        rows.append((str(stage.get("name", "")), format_duration(float(stage.get("seconds", 0))), about))
    return table(("stage", "time", ""), rows) if rows else Markup()


def _list_tiles(runs: Sequence[RunRecord], results: Sequence[ComparisonResults]) -> Iterator[tuple[str, str]]:
    """Yield the headline numbers, with what they are."""
    for result in results:
        count = max(row["labels"] for row in result.rows)
        best = max((row for row in result.rows if row["labels"] == count), key=lambda row: float(row["mean"]))
        metric, labels = result.metadata.get("metric", "score"), format_count(count, "labels")
        yield f"{best['mean']:.3f}", f"best {metric} at {labels}: {best['method']}"
        if (gain := compute_lead(result.rows, count)) is not None:
            yield f"{gain:+.3f}", f"best pre-trained over the best baseline at {labels}"
    for run in [run for run in runs if run.scores][: 0 if results else MAX_TILES]:
        assert run.scores is not None
        score, baseline = run.scores["result"], find_best_baseline(run)
        comparison = f"; {baseline['name']} {baseline['score']:.3f}" if baseline else ""
        yield f"{score['score']:.3f}", f"{run.scores['metric']} on {score['split']}, {run.name}{comparison}"
    for run in [run for run in runs if not run.is_finetuned][:2]:
        loss = (run.summary.get("held_out") or {}).get("loss")
        if isinstance(loss, int | float):
            yield f"{loss:.3f}", f"validation loss, {run.name}"
    if any(run.cost is not None for run in runs):
        total = sum_costs(runs, results)
        yield format_duration(total["seconds"]), "training time"
        yield format_kilograms(total["co2e_kg"]), "CO2e"


def compute_lead(rows: Sequence[Facts], labels: int) -> float | None:
    """Return the lead of the best pre-trained row over the best simple baseline; None where one is missing."""
    means = {
        group: [float(row["mean"]) for row in rows if row["labels"] == labels and row.get("group") == group]
        for group in ("pretrained", "baseline")
    }
    return max(means["pretrained"]) - max(means["baseline"]) if all(means.values()) else None
