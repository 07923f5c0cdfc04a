"""The page: sections in order; those without data are left out."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pretune.core import io
from pretune.core.counted import counted
from pretune.core.errors import UsageError
from pretune.core.format import clock, weight
from pretune.reports.cost import cost, data, repeat, summed
from pretune.reports.curves import by_labels, learning, samples
from pretune.reports.errors import mistakes
from pretune.reports.load import Ran, Results, gather
from pretune.reports.markup import NOTHING, Child, Markup, code, element, escape, joined, table
from pretune.reports.runs import what_was_run
from pretune.reports.scores import best_baseline, compared, label_chart, scores
from pretune.reports.suites import suite_tables

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
    found = [one for path in given for one in gather(path)]
    ran: list[Ran] = []
    for one in found:
        if isinstance(one, Ran) and one.path.resolve() not in [run.path.resolve() for run in ran]:
            ran.append(one)
    results = [one for one in found if isinstance(one, Results)]
    io.atomic_write(where, page(ran, results, given, where, title).html.encode())
    return where


def page(
    runs: Sequence[Ran], results: Sequence[Results], given: Sequence[Path], out: Path, title: str | None = None
) -> Markup:
    """The whole document."""
    named = title or next((str(one.about["title"]) for one in results if one.about.get("title")), None)
    heading = named or " · ".join(one.name for one in (results or runs))
    sections = _sections(runs, results, given, out)
    links = element("nav", *(element("a", name, href=f"#{anchor}") for anchor, name, _ in sections))
    body = [element("section", element("h2", name), content, id_=anchor) for anchor, name, content in sections]
    style = Path(__file__).with_name("style.css").read_text()
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="generator" content="pretune">'
        f"<title>{escape(heading)}</title><style>{style}</style>"
    )
    main = element("main", element("h1", heading), *_story(results), _tiles(runs, results), links, *body)
    return Markup(f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{main.html}</body></html>\n')


def _sections(runs: Sequence[Ran], results: Sequence[Results], given: Sequence[Path], out: Path) -> list[Section]:
    tables = [compared(one) for one in results]
    if not results or told_apart(runs):
        tables += [scores(runs), suite_tables(runs)]
    charts = [chart for chart in (*map(label_chart, results), *by_labels(runs)) if chart.html]
    few = element("div", *charts, kind="charts") if charts else NOTHING
    found = [
        ("scores", "Scores", joined(tables)),
        ("labels", "How many labels it takes", few),
        ("ran", "What was run", joined([*map(_stages, results), what_was_run(runs)])),
        ("learning", "Learning curves", learning(runs)),
        ("mistakes", "Where it is wrong", mistakes(runs)),
        ("samples", "What it said while it learnt", samples(runs)),
        ("cost", "What it cost", cost(runs, results)),
        ("data", "What it read", data(runs, results)),
        *use(results),
        ("repeat", "How to repeat it", repeat(runs, results, given, out)),
    ]
    if not results and not any(run.scores for run in runs):  # pre-training alone: what was run comes first
        found = [*found[2:], *found[:2]]
    return [one for one in found if one[2].html]


def told_apart(runs: Sequence[Ran]) -> bool:
    """Whether the scores of runs say more than the table of a comparison that they are part of."""
    scored = [run.scores for run in runs if run.scores]
    return len(scored) > 1 or any(one["baselines"] for one in scored)


def use(results: Sequence[Results]) -> list[Section]:
    """What can be done with the models of a comparison, where it says so."""
    told = [one.about.get("use") for one in results]
    lines = [str(line) for one in told if isinstance(one, list) for line in one]
    return [("use", "What to do with it", code(*lines))] if lines else []


def _story(results: Sequence[Results]) -> list[Markup]:
    told = [one.about.get("story") for one in results]
    lines = [line for one in told for line in ([one] if isinstance(one, str) else one if isinstance(one, list) else [])]
    return [element("p", str(line), kind="lead") for line in lines]


def _stages(results: Results) -> Markup:
    stages = results.about.get("stages")
    if not isinstance(stages, list):
        return Markup("")
    rows: list[Sequence[Child]] = []
    for one in stages:
        notes = [element("small", str(text)) for text in one.get("notes") or ()]
        told = joined([str(one.get("about", "")), *notes])
        rows.append((str(one.get("name", "")), clock(float(one.get("seconds", 0))), told))
    return table(("stage", "time", ""), rows)


def _tiles(runs: Sequence[Ran], results: Sequence[Results]) -> Markup:
    """The few numbers one looks for."""
    tiles: list[tuple[str, str]] = []
    for one in results:
        most = max(row["labels"] for row in one.rows)
        best = max((row for row in one.rows if row["labels"] == most), key=lambda row: float(row["mean"]))
        tiles.append(
            (
                f"{best['mean']:.3f}",
                f"best {one.about.get('metric', 'score')} at {counted(most, 'labels')}: {best['method']}",
            )
        )
        if (gain := lead(one.rows, most)) is not None:
            tiles.append((f"{gain:+.3f}", f"best pre-trained over the best baseline at {counted(most, 'labels')}"))
    for run in [run for run in runs if run.scores][: 0 if results else 3]:
        assert run.scores is not None
        found, beneath = run.scores["result"], best_baseline(run)
        beside = f"; {beneath['name']} {beneath['score']:.3f}" if beneath else ""
        tiles.append((f"{found['score']:.3f}", f"{run.scores['metric']} on {found['split']}, {run.name}{beside}"))
    for run in [run for run in runs if not run.tuned][:2]:
        loss = (run.summary.get("held_out") or {}).get("loss")
        if isinstance(loss, int | float):
            tiles.append((f"{loss:.3f}", f"held-out loss, {run.name}"))
    if any(run.cost is not None for run in runs):
        total = summed(runs, results)
        tiles += [(clock(total["seconds"]), "of training"), (weight(total["co2e_kg"]), "of CO2e")]
    shown = [element("div", element("b", value), element("span", about), kind="tile") for value, about in tiles]
    return element("div", *shown, kind="tiles") if shown else Markup("")


def lead(rows: Sequence[Mapping[str, Any]], labels: int) -> float | None:
    """Return the lead of the best pre-trained row over the best simple baseline; None where one is missing."""
    means = {
        group: [float(row["mean"]) for row in rows if row["labels"] == labels and row.get("group") == group]
        for group in ("pretrained", "baseline")
    }
    return max(means["pretrained"]) - max(means["baseline"]) if all(means.values()) else None
