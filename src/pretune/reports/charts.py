"""Charts of a report: lines with bands by matplotlib, as SVG in the colours of the page's theme; bars and intervals.

    draw_line_chart([Series("loss", ((0, 7.1), (100, 5.2)))], x="step", y="loss")

Names of series are HTML below the chart; the name of the x axis is drawn literally, without mathematics.
"""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretune.analysis.pictures import INK, RULE, SOFT
from pretune.core.log import escape as escape_controls
from pretune.core.log import format_number
from pretune.reports import NO_MARKUP, Markup, element

WIDTH, HEIGHT = 4.6, 2.6
"""Size of a chart in inches."""
COLOUR_COUNT = 8
MAX_POINTS = 240
"""Maximum number of points of a line; more are averaged."""
MAX_BANDS, WHISKER_SPACING = 2, 3.0
"""Above `MAX_BANDS`, intervals are drawn as whiskers, this far apart, since bands would hide each other."""
MIN_TICK_DISTANCE = 0.1
"""Minimum distance of the numbers of a logarithmic axis, as a share of its length."""
_SOFT, _RULE = "#10c098", "#10c099"
_SERIES = {f"#10c0{n:02}": f"var(--c{n})" for n in range(COLOUR_COUNT)}
_TEXTS = {_SOFT: "var(--soft)", _RULE: "var(--rule)", INK: "var(--ink)", SOFT: "var(--soft)", RULE: "var(--rule)"}
_THEME = _SERIES | _TEXTS
"""Colours that matplotlib draws, and the CSS variables that replace them."""
_STYLES: dict[str, dict[str, Any]] = {
    "dashed": {"linestyle": (0, (3, 2))},
    "faint": {"alpha": 0.45, "linewidth": 1.1},
    "dots": {"linestyle": "none", "alpha": 0.6},
    "line": {"marker": "", "linewidth": 1.1},
}
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: points by x, optionally with a band around it."""

    name: str
    points: tuple[Point, ...]
    band: tuple[tuple[float, float, float], ...] = ()  # x, low, high
    colour: int = 0
    style: str = ""  # dots, dashed, faint, line (without points)


def draw_line_chart(series: Sequence[Series], *, x: str, y: str, log_x: bool = False) -> Markup:
    """Draw lines with a legend; empty markup if there are no points."""
    from matplotlib.figure import Figure
    from matplotlib.transforms import offset_copy

    lines = [line for line in series if line.points]
    if not lines:
        return NO_MARKUP
    figure: Any = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    has_whiskers = sum(bool(line.band) for line in lines) > MAX_BANDS
    for place, line in enumerate(lines):
        # NOTE: a clip path would need an id, and several charts are in one page.
        options = {"color": f"#10c0{line.colour % COLOUR_COUNT:02}", "clip_on": False, "in_layout": False}
        xs, ys = zip(*line.points, strict=True) if line.style == "dots" else average_points(line.points)
        marker = "o" if len(xs) <= 12 or line.style == "dots" else ""
        style = {"linewidth": 1.6, "markersize": 4, "marker": marker, **_STYLES.get(line.style, {})}
        artists = axes.plot(xs, ys, **options, **style)
        if line.band and has_whiskers:
            artists.append(axes.vlines(*zip(*line.band, strict=True), alpha=0.55, linewidth=1.3, **options))
        elif line.band:
            axes.fill_between(*zip(*line.band, strict=True), alpha=0.16, linewidth=0, **options)
        shift = WHISKER_SPACING * (place - (len(lines) - 1) / 2) if has_whiskers else 0.0
        for artist in artists if shift else ():
            artist.set_transform(offset_copy(axes.transData, figure, x=shift, units="points"))
    _format_axes(axes, [point[0] for line in lines for point in line.points], log_x=log_x)
    axes.set_xlabel(x, parse_math=False)
    keys = [
        element("span", element("i", kind=f"key c{line.colour % COLOUR_COUNT} {line.style}"), line.name, kind="label")
        for line in lines
        if line.name
    ]
    chart = to_svg(figure, f"{y} by {x}")
    return element("figure", element("p", y, kind="above"), chart, element("figcaption", *keys))


def draw_size_chart(series: Sequence[Series], metric: str) -> Markup:
    """Draw scores by training set size."""
    return draw_line_chart(series, x="training examples (logarithmic)", y=f"{metric} by training examples", log_x=True)


def draw_interval_chart(low: float | None, value: float, high: float | None, span: tuple[float, float]) -> Markup:
    """Draw a dot with its interval, on the common scale of a table."""

    def place(number: float) -> float:
        return 100 * min(max((number - span[0]) / (span[1] - span[0]), 0.0), 1.0)

    parts = [element("b", style=f"left:{place(value):.1f}%")]
    if low is not None and high is not None:
        parts.insert(0, element("i", style=f"left:{place(low):.1f}%;width:{place(high) - place(low):.1f}%"))
    return element("span", *parts, kind="interval", aria_hidden="true")


def average_points(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Return the coordinates of at most `MAX_POINTS` points, the means of equal parts."""
    parts = np.array_split(np.array(points, dtype=float), min(len(points), MAX_POINTS))
    return [float(part[-1, 0]) for part in parts], [float(part[:, 1].mean()) for part in parts]


def _format_axes(axes: Any, xs: Sequence[float], *, log_x: bool) -> None:
    """Set round ticks, horizontal rules, and the colours of the theme; steps are whole numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=all(value == int(value) for value in xs)))
    if log_x and min(xs) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(select_ticks(sorted(set(xs))))
    if max(map(abs, xs)) >= 1000 or log_x:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
    axes.grid(axis="y", color=_RULE, linewidth=0.8, clip_on=False)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, labelcolor=_SOFT)
    axes.xaxis.label.set(color=_SOFT, size=9)
    axes.spines[:].set_visible(False)
    axes.patch.set_visible(False)


def select_ticks(values: Sequence[float]) -> list[float]:
    """Return the values whose labels do not overlap the previous one on a logarithmic axis."""
    span = math.log(values[-1] / values[0]) or 1.0
    ticks = [*values[:1]]
    for value in values[1:]:
        if math.log(value / ticks[-1]) >= MIN_TICK_DISTANCE * span:
            ticks.append(value)
    return ticks


def to_svg(figure: Any, title: str) -> Markup:
    """Return a figure as an SVG element without links, ids and fonts of its own, in CSS colours."""
    import matplotlib as mpl

    buffer = io.StringIO()
    figure.patch.set_visible(False)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pretune"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    body = buffer.getvalue().partition("</defs>")[2]  # after the metadata and a style sheet for the whole page
    body = re.sub(r' id="[\w.]+_\d+"|<!--.*?-->|\n *| font-family: [^;]+;| transform="rotate\(-0 [^"]+"', "", body)
    body = re.sub("|".join(_THEME), lambda match: _THEME[match[0]], body)
    width, height = figure.get_size_inches()
    size = f"0 0 {72 * width:g} {72 * height:g}"
    opening = element("svg", kind="chart", viewBox=size, role="img", aria_label=title)
    return Markup(opening.removesuffix("</svg>") + escape_controls(body))
