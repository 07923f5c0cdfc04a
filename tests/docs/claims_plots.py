"""Plots of docs/claims.md: docs/studies/claims-NAME.svg, from the published results of studies at the scale gpu.

A plot appears with the results of its study. The bytes of a plot depend on the version of matplotlib, so its file has a
digest of what is drawn, and is only drawn anew if that changes.
"""

import hashlib
import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.analysis.pictures import INK, SOFT
from pretune.reports import Markup, element, escape
from pretune.reports import study as study_page
from pretune.reports.charts import COLOUR_COUNT, HEIGHT, WIDTH, Series, draw_line_chart, to_svg
from tests.docs.claims_page import SCALE, is_current
from tests.docs.study_pages import FOLDER, Facts

REPORT = Path(__file__).parents[2] / "src" / "pretune" / "reports" / "report.html"
PREFIX = "claims-"
LEGEND_COLUMNS, LEGEND_STEP = 2, 14
MIN_LOG_RATIO = 30.0
"""Ratio of values from which an axis is logarithmic."""


@dataclass(frozen=True)
class Plot:
    """Plot of a study: its caption, and the measures that are drawn."""

    study: str
    caption: str
    draw: Callable[[Facts, Sequence[str]], Markup]
    measures: tuple[str, ...] = ()

    def list_values(self, facts: Facts) -> list[list[Any]]:
        """Return what is drawn: row, measure, mean and interval of every cell."""
        cells = (
            (row, name, facts["table"][row].get(name)) for row in facts["rows"] for name in self.list_measures(facts)
        )
        values = [[row, name, *(cell[key] for key in ("mean", "low", "high"))] for row, name, cell in cells if cell]
        law = facts.get("law") if self.draw is draw_law else None
        return values if law is None else [[p["row"], p["parameters"], p["tokens"], p["loss"]] for p in law["points"]]

    def list_measures(self, facts: Facts) -> list[str]:
        """Return the measures that are drawn: those with these names, and the points of curves with them."""
        return [m["name"] for m in facts["measures"] if {m["name"], m["curve"]} & {*self.measures}]

    def compute_digest(self, facts: Facts) -> str:
        """Return a digest of the plot's content."""
        values = [[f"{v:.6g}" if isinstance(v, float) else v for v in line] for line in self.list_values(facts)]
        return hashlib.sha256(json.dumps([self.draw.__name__, values]).encode()).hexdigest()[:16]


def make_series(name: str, colour: int, cells: Sequence[tuple[float, Facts]]) -> Series:
    band = tuple((x, cell["low"], cell["high"]) for x, cell in cells if cell["low"] is not None)
    return Series(name, tuple((x, cell["mean"]) for x, cell in cells), band, colour)


def draw_curves(facts: Facts, names: Sequence[str]) -> Markup:
    """Draw a line for each row through the points of a curve."""
    points = [measure for measure in facts["measures"] if measure["name"] in names]
    label = next(point["x_label"] for point in points if point["x_label"])
    series = [
        make_series(row, colour, [(p["x"], cells[p["name"]]) for p in points if p["name"] in cells])
        for colour, (row, cells) in enumerate(facts["table"].items())
    ]
    return add_legend(draw_line_chart(series, x=f"{label} (logarithmic)", y="score", log_x=True), series)


def draw_sizes(facts: Facts, names: Sequence[str]) -> Markup:
    """Draw a line for each score, by the parameters of the rows."""
    series = [
        make_series(name, colour, [(c["parameters"]["mean"], c[name]) for c in facts["table"].values() if name in c])
        for colour, name in enumerate(name for name in names if name != "parameters")
    ]
    return add_legend(draw_line_chart(series, x="parameters (logarithmic)", y="score", log_x=True), series)


def draw_rows(facts: Facts, names: Sequence[str]) -> Markup:
    """Draw mean and interval of every row, a panel for each measure."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    rows = [row for row in facts["rows"] if any(name in facts["table"][row] for name in names)]
    figure: Any = Figure(figsize=(1.4 * WIDTH, 0.6 + 0.25 * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for colour, (axes, name) in enumerate(zip(panels, names, strict=True)):
        cells = {place: cell for place, row in enumerate(rows) if (cell := facts["table"][row].get(name))}
        options = {"color": f"#10c0{colour % COLOUR_COUNT:02}", "clip_on": False}
        bounds = [(place, c["low"], c["high"]) for place, c in cells.items() if c["low"] is not None]
        if bounds:
            axes.hlines(*zip(*bounds, strict=True), linewidth=1.3, alpha=0.55, **options)
        means = [cell["mean"] for cell in cells.values()]
        axes.plot(means, [*cells], linestyle="none", marker="o", markersize=4, **options)
        if min(means) > 0 and max(means) / min(means) > MIN_LOG_RATIO:
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.locator_params(axis="x", nbins=3)
        axes.set_xlabel(name, parse_math=False, color=SOFT, size=8)
        axes.set_yticks(range(len(rows)), rows, parse_math=False)
        axes.tick_params(length=0, labelsize=8, labelcolor=INK)
        axes.spines[:].set_visible(False)
        axes.patch.set_visible(False)
    panels[0].invert_yaxis()
    return to_svg(figure, "scores of the rows")


def draw_law(facts: Facts, names: Sequence[str]) -> Markup:
    """Draw the law of a study, as its page does; the names of its lines are those of the legend there."""
    chart = study_page.draw_law(facts["law"])
    keys = re.findall(r'class="key c(\d)[^"]*"></i>([^<]+)', chart)
    return add_legend(chart, [Series(html.unescape(name), (), (), int(colour)) for colour, name in keys])


def add_legend(chart: Markup, series: Sequence[Series]) -> Markup:
    """Return the drawing of a line chart with the names of its lines below it."""
    match = re.search(r"<svg.*</svg>", chart, re.DOTALL)
    assert match is not None
    parts = []
    for place, line in enumerate(series):
        row, column = divmod(place, LEGEND_COLUMNS)
        x, y = 72 * WIDTH * column / LEGEND_COLUMNS + 12, 72 * HEIGHT + LEGEND_STEP * (row + 0.8)
        style = f"stroke: var(--c{line.colour % COLOUR_COUNT}); stroke-width: 3"
        parts.append(element("path", d=f"M {x:g} {y - 3:g} h 14", style=style))
        parts.append(element("text", line.name, x=f"{x + 19:g}", y=f"{y:g}", style="font-size: 9px; fill: var(--soft)"))
    height = 72 * HEIGHT + LEGEND_STEP * -(-len(series) // LEGEND_COLUMNS) + 4
    text = re.sub(r'viewBox="[^"]+"', f'viewBox="0 0 {72 * WIDTH:g} {height:g}"', match[0], count=1)
    return Markup(text.removesuffix("</svg>") + "".join(parts) + "</svg>")


def render_file(chart: str, digest: str, caption: str) -> str:
    """Return a drawing as a file of its own: with its size, its digest and the colours of a report."""
    theme = re.search(r":root \{.*?\} \}", REPORT.read_text(encoding="utf-8"), re.DOTALL)
    size = re.search(r'viewBox="0 0 (\S+) (\S+)"', chart)
    assert theme is not None and size is not None
    width, height = size.groups()
    opening, body = chart.split(">", 1)
    opening += f' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="{width}pt"'
    style = element("style", Markup(f"{theme[0]} text {{ font-family: system-ui, sans-serif; }}"))
    paper = element("rect", width=width, height=height, style="fill: var(--paper)")
    return f"{opening}>\n<!-- data {digest} -->\n<title>{escape(caption)}</title>{style}{paper}{body}\n"


_SIZES = ("MNLI", "MRPC", "SST-2", "SST-2, 500 labels", "parameters")
_OBJECTIVES = ("MNLI", "SST-2, 500 labels", "SQuAD split", "CoNLL")
PLOTS: Mapping[str, Plot] = {
    "labels": Plot("labels", "Accuracy on SST-2 by the number of labels", draw_curves, ("SST-2",)),
    "curves": Plot("mlm-vs-ltr-curve", "Masked and left to right after parts of the tokens", draw_curves, ("score",)),
    "objectives": Plot("bert-objectives", "Scores by objective", draw_rows, _OBJECTIVES),
    "sizes": Plot("bert-size", "Scores by the size of the encoder", draw_sizes, _SIZES),
    "scaling": Plot("scaling", "Loss by tokens, for every size, and the law", draw_law),
    "methods": Plot("adaptation", "Scores by method of fine-tuning", draw_rows, ("MNLI", "SST-2", "trained share")),
}
"""Plots of the page by their name."""


def list_plots(results: Mapping[str, Mapping[str, Facts]]) -> dict[Path, tuple[Plot, Facts]]:
    """Return the files of the plots whose studies have results of today's plan."""
    published = {name: results.get(plot.study, {}).get(SCALE) for name, plot in PLOTS.items()}
    return {
        FOLDER / f"{PREFIX}{name}.svg": (PLOTS[name], facts)
        for name, facts in published.items()
        if facts is not None and is_current(facts) and PLOTS[name].list_values(facts)
    }


def render_plots(results: Mapping[str, Mapping[str, Facts]]) -> dict[Path, str]:
    """Return the plots whose content is not that of their file."""
    texts = {}
    for path, (plot, facts) in list_plots(results).items():
        digest = plot.compute_digest(facts)
        if not path.is_file() or f"<!-- data {digest} -->" not in path.read_text(encoding="utf-8"):
            texts[path] = render_file(plot.draw(facts, plot.list_measures(facts)), digest, plot.caption)
    return texts


def describe_plots(results: Mapping[str, Mapping[str, Facts]]) -> str:
    """Return the lines that show the plots."""
    return "".join(
        f"![{plot.caption}](studies/{path.name})\n\n{plot.caption}: mean, and 95 % interval over the seeds "
        f"([{plot.study}](studies/{plot.study}.md)).\n\n"
        for path, (plot, _) in list_plots(results).items()
    )
