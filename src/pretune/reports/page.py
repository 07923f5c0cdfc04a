"""The page: sections in order; those without data are left out."""

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
    """Write one HTML file about runs and results, in the order given; the same input gives the same bytes.

    A run is a directory of `pretune pretrain` or `pretune finetune`, finished or not. A folder with results.json (rows
    of method, labels, mean and seeds) is a comparison; the runs that it names are shown with it.
    """
    where = Path(out)
    if not runs:
        raise UsageError("no runs to report on; give at least one directory")
    if where.is_dir():
        raise UsageError(f"{where}: is a directory; give --out the name of a file, such as {where / 'report.html'}")
    given = [Path(one) for one in runs]
    found = [one for path in given for one in load_directory(path)]
    ran: list[RunRecord] = []
    for one in found:
        if isinstance(one, RunRecord) and one.path.resolve() not in [run.path.resolve() for run in ran]:
            ran.append(one)
    results = [one for one in found if isinstance(one, ComparisonResults)]
    io.atomic_write(where, render_page(ran, results, given, where, title).html.encode())
    return where


def render_page(
    runs: Sequence[RunRecord],
    results: Sequence[ComparisonResults],
    paths: Sequence[Path],
    out: Path,
    title: str | None = None,
) -> Markup:
    """The whole document."""
    named = title or next((str(one.metadata["title"]) for one in results if one.metadata.get("title")), None)
    heading = named or " · ".join(one.name for one in (results or runs))
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
    tables = [render_comparison(one) for one in results]
    if not results or needs_run_scores(runs):
        tables += [render_scores(runs), render_suites(runs)]
    charts = [chart for chart in (*map(draw_label_chart, results), *draw_label_curves(runs)) if chart.html]
    few = element("div", *charts, kind="charts") if charts else NO_MARKUP
    found = [
        ("scores", "Scores", join(tables)),
        ("labels", "How many labels it takes", few),
        ("ran", "What was run", join([*map(_render_stages, results), render_runs(runs)])),
        ("learning", "Learning curves", render_learning_curves(runs)),
        ("mistakes", "Where it is wrong", render_errors(runs)),
        ("samples", "What it said while it learnt", render_samples(runs)),
        ("cost", "What it cost", render_cost(runs, results)),
        ("data", "What it read", render_data(runs, results)),
        *build_usage_sections(results),
        ("repeat", "How to repeat it", render_commands(runs, results, paths, out)),
    ]
    if not results and not any(run.scores for run in runs):  # pre-training alone: what was run comes first
        found = [*found[2:], *found[:2]]
    return [one for one in found if one[2].html]


def needs_run_scores(runs: Sequence[RunRecord]) -> bool:
    """Whether the scores of runs say more than the table of a comparison that they are part of."""
    scored = [run.scores for run in runs if run.scores]
    return len(scored) > 1 or any(one["baselines"] for one in scored)


def build_usage_sections(results: Sequence[ComparisonResults]) -> list[Section]:
    """What can be done with the models of a comparison, where it says so."""
    told = [one.metadata.get("use") for one in results]
    lines = [str(line) for one in told if isinstance(one, list) for line in one]
    return [("use", "What to do with it", code(*lines))] if lines else []


def _render_story(results: Sequence[ComparisonResults]) -> list[Markup]:
    told = [one.metadata.get("story") for one in results]
    lines = [line for one in told for line in ([one] if isinstance(one, str) else one if isinstance(one, list) else [])]
    return [element("p", str(line), kind="lead") for line in lines]


def _render_stages(results: ComparisonResults) -> Markup:
    stages = results.metadata.get("stages")
    if not isinstance(stages, list):
        return Markup("")
    rows: list[Sequence[Child]] = []
    for one in stages:
        notes = [element("small", str(text)) for text in one.get("notes") or ()]
        told = join([str(one.get("about", "")), *notes])
        rows.append((str(one.get("name", "")), format_duration(float(one.get("seconds", 0))), told))
    return table(("stage", "time", ""), rows)


def _render_tiles(runs: Sequence[RunRecord], results: Sequence[ComparisonResults]) -> Markup:
    """The few numbers one looks for."""
    tiles: list[tuple[str, str]] = []
    for one in results:
        most = max(row["labels"] for row in one.rows)
        best = max((row for row in one.rows if row["labels"] == most), key=lambda row: float(row["mean"]))
        tiles.append(
            (
                f"{best['mean']:.3f}",
                f"best {one.metadata.get('metric', 'score')} at {format_count(most, 'labels')}: {best['method']}",
            )
        )
        if (gain := compute_lead(one.rows, most)) is not None:
            tiles.append((f"{gain:+.3f}", f"best pre-trained over the best baseline at {format_count(most, 'labels')}"))
    for run in [run for run in runs if run.scores][: 0 if results else 3]:
        assert run.scores is not None
        found, beneath = run.scores["result"], find_best_baseline(run)
        beside = f"; {beneath['name']} {beneath['score']:.3f}" if beneath else ""
        tiles.append((f"{found['score']:.3f}", f"{run.scores['metric']} on {found['split']}, {run.name}{beside}"))
    for run in [run for run in runs if not run.is_finetuned][:2]:
        loss = (run.summary.get("held_out") or {}).get("loss")
        if isinstance(loss, int | float):
            tiles.append((f"{loss:.3f}", f"held-out loss, {run.name}"))
    if any(run.cost is not None for run in runs):
        total = sum_costs(runs, results)
        tiles += [(format_duration(total["seconds"]), "of training"), (format_kilograms(total["co2e_kg"]), "of CO2e")]
    shown = [element("div", element("b", value), element("span", about), kind="tile") for value, about in tiles]
    return element("div", *shown, kind="tiles") if shown else Markup("")


def compute_lead(rows: Sequence[Mapping[str, Any]], labels: int) -> float | None:
    """Return the lead of the best pre-trained row over the best simple baseline; None where one is missing."""
    means = {
        group: [float(row["mean"]) for row in rows if row["labels"] == labels and row.get("group") == group]
        for group in ("pretrained", "baseline")
    }
    return max(means["pretrained"]) - max(means["baseline"]) if all(means.values()) else None
