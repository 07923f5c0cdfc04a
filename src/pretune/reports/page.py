"""Report page: sections in order; empty ones are dropped."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pretune.core import io
from pretune.core.errors import UsageError
from pretune.core.format import format_count, format_duration, format_kilograms
from pretune.reports.cost import render_commands, render_cost, render_data, sum_costs
from pretune.reports.curves import draw_label_curves, render_learning_curves, render_samples
from pretune.reports.errors import render_errors
from pretune.reports.load import ComparisonResults, RunRecord, load_directory
from pretune.reports.markup import NO_MARKUP, Child, Markup, code, element, escape, join, table
from pretune.reports.runs import render_runs
from pretune.reports.scores import draw_label_chart, find_best_baseline, render_comparison, render_scores
from pretune.reports.suites import render_suites

Section = tuple[str, str, Markup]


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
    directories = [Path(run) for run in runs]
    loaded_records = [record for path in directories for record in load_directory(path)]
    run_records: list[RunRecord] = []
    for record in loaded_records:
        if isinstance(record, RunRecord) and record.path.resolve() not in [run.path.resolve() for run in run_records]:
            run_records.append(record)
    results = [record for record in loaded_records if isinstance(record, ComparisonResults)]
    io.atomic_write(out_path, render_page(run_records, results, directories, out_path, title).html.encode())
    return out_path


def render_page(
    runs: Sequence[RunRecord],
    results: Sequence[ComparisonResults],
    paths: Sequence[Path],
    out: Path,
    title: str | None = None,
) -> Markup:
    """Render the complete document."""
    heading_text = title or next(
        (str(result.metadata["title"]) for result in results if result.metadata.get("title")), None
    )
    heading = heading_text or " · ".join(record.name for record in (results or runs))
    sections = _build_sections(runs, results, paths, out)
    links = element("nav", *(element("a", name, href=f"#{anchor}") for anchor, name, _ in sections))
    body = [element("section", element("h2", name), content, id_=anchor) for anchor, name, content in sections]
    style = Path(__file__).with_name("style.css").read_text()
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="generator" content="pretune">'
        f"<title>{escape(heading)}</title><style>{style}</style>"
    )
    main = element("main", element("h1", heading), *_render_story(results), _render_tiles(runs, results), links, *body)
    return Markup(f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{main.html}</body></html>\n')


def _build_sections(
    runs: Sequence[RunRecord], results: Sequence[ComparisonResults], paths: Sequence[Path], out: Path
) -> list[Section]:
    tables = [render_comparison(result) for result in results]
    if not results or needs_run_scores(runs):
        tables += [render_scores(runs), render_suites(runs)]
    charts = [chart for chart in (*map(draw_label_chart, results), *draw_label_curves(runs)) if chart.html]
    label_charts = element("div", *charts, kind="charts") if charts else NO_MARKUP
    sections = [
        ("scores", "Scores", join(tables)),
        ("labels", "Training set size", label_charts),
        ("runs", "Runs", join([*map(_render_stages, results), render_runs(runs)])),
        ("learning", "Learning curves", render_learning_curves(runs)),
        ("errors", "Errors", render_errors(runs)),
        ("samples", "Samples during training", render_samples(runs)),
        ("cost", "Cost", render_cost(runs, results)),
        ("data", "Data", render_data(runs, results)),
        *build_usage_sections(results),
        ("reproduce", "Commands to reproduce", render_commands(runs, results, paths, out)),
    ]
    if not results and not any(run.scores for run in runs):  # only pre-training: runs come first
        sections = [*sections[2:], *sections[:2]]
    return [section for section in sections if section[2].html]


def needs_run_scores(runs: Sequence[RunRecord]) -> bool:
    """Return whether the scores of runs add to the table of a comparison they belong to."""
    run_scores = [run.scores for run in runs if run.scores]
    return len(run_scores) > 1 or any(scores["baselines"] for scores in run_scores)


def build_usage_sections(results: Sequence[ComparisonResults]) -> list[Section]:
    """Return the section of commands that use the models of a comparison."""
    usages = [result.metadata.get("use") for result in results]
    lines = [str(line) for usage in usages if isinstance(usage, list) for line in usage]
    return [("use", "Usage", code(*lines))] if lines else []


def _render_story(results: Sequence[ComparisonResults]) -> list[Markup]:
    stories = [result.metadata.get("story") for result in results]
    lines = [
        line
        for story in stories
        for line in ([story] if isinstance(story, str) else story if isinstance(story, list) else [])
    ]
    return [element("p", str(line), kind="lead") for line in lines]


def _render_stages(results: ComparisonResults) -> Markup:
    stages = results.metadata.get("stages")
    if not isinstance(stages, list):
        return Markup("")
    rows: list[Sequence[Child]] = []
    for stage in stages:
        notes = [element("small", str(text)) for text in stage.get("notes") or ()]
        description = join([str(stage.get("about", "")), *notes])
        rows.append((str(stage.get("name", "")), format_duration(float(stage.get("seconds", 0))), description))
    return table(("stage", "time", ""), rows)


def _render_tiles(runs: Sequence[RunRecord], results: Sequence[ComparisonResults]) -> Markup:
    """Render the headline numbers."""
    tiles: list[tuple[str, str]] = []
    for result in results:
        max_labels = max(row["labels"] for row in result.rows)
        best = max((row for row in result.rows if row["labels"] == max_labels), key=lambda row: float(row["mean"]))
        tiles.append(
            (
                f"{best['mean']:.3f}",
                f"best {result.metadata.get('metric', 'score')} at {format_count(max_labels, 'labels')}: "
                f"{best['method']}",
            )
        )
        if (gain := compute_lead(result.rows, max_labels)) is not None:
            tiles.append(
                (f"{gain:+.3f}", f"best pre-trained over the best baseline at {format_count(max_labels, 'labels')}")
            )
    for run in [run for run in runs if run.scores][: 0 if results else 3]:
        assert run.scores is not None
        result, baseline = run.scores["result"], find_best_baseline(run)
        comparison = f"; {baseline['name']} {baseline['score']:.3f}" if baseline else ""
        tiles.append((f"{result['score']:.3f}", f"{run.scores['metric']} on {result['split']}, {run.name}{comparison}"))
    for run in [run for run in runs if not run.is_finetuned][:2]:
        loss = (run.summary.get("held_out") or {}).get("loss")
        if isinstance(loss, int | float):
            tiles.append((f"{loss:.3f}", f"validation loss, {run.name}"))
    if any(run.cost is not None for run in runs):
        total = sum_costs(runs, results)
        tiles += [(format_duration(total["seconds"]), "training time"), (format_kilograms(total["co2e_kg"]), "CO2e")]
    rendered_tiles = [
        element("div", element("b", value), element("span", about), kind="tile") for value, about in tiles
    ]
    return element("div", *rendered_tiles, kind="tiles") if rendered_tiles else Markup("")


def compute_lead(rows: Sequence[Mapping[str, Any]], labels: int) -> float | None:
    """Return the lead of the best pre-trained row over the best simple baseline; None where one is missing."""
    means = {
        group: [float(row["mean"]) for row in rows if row["labels"] == labels and row.get("group") == group]
        for group in ("pretrained", "baseline")
    }
    return max(means["pretrained"]) - max(means["baseline"]) if all(means.values()) else None
