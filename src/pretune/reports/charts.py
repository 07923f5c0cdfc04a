"""SVG charts: lines with bands, intervals, dots, bars. Colours are CSS classes of the page, for both themes.

    draw_line_chart([Series("loss", ((0, 7.1), (100, 5.2)))], x="step", y="loss")

The legend is below a chart, and axes drop labels that would overlap.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pretune.core.format import format_number
from pretune.reports.markup import NO_MARKUP, Markup, element, join

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 40
COLOUR_COUNT = 8
MAX_POINTS = 240
"""Maximum number of points of a line; more are averaged."""
MAX_BANDS, WHISKER_SPACING = 2, 3.0
"""Above `MAX_BANDS`, intervals are drawn as whiskers, this far apart, since bands would hide each other."""
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: points by x, optionally with a band around it."""

    name: str
    points: tuple[Point, ...]
    band: tuple[tuple[float, float, float], ...] = ()  # x, low, high
    colour: int = 0
    style: str = ""  # dots, dashed, faint


@dataclass(frozen=True, slots=True)
class Axis:
    """Scale from values to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def scale(self, value: float) -> float:
        """Return the pixel position of a value, rounded to a tenth."""
        low, high, value = (math.log(number) if self.is_log else number for number in (self.low, self.high, value))
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)


def draw_line_chart(series: Sequence[Series], *, x: str, y: str, log_x: bool = False, title: str = "") -> Markup:
    """Draw lines with a legend; empty markup if there are no points."""
    lines = [downsample(item) for item in series if item.points]
    if not lines:
        return NO_MARKUP
    xs = [point[0] for line in lines for point in line.points]
    ys = [point[1] for line in lines for point in line.points]
    ys += [end for line in lines for _, *ends in line.band for end in ends]
    log_x = log_x and min(xs) > 0
    x_axis = _fit_axis(xs, LEFT + 14, WIDTH - RIGHT - 14, is_log=log_x)
    y_axis = _fit_axis(ys, HEIGHT - BOTTOM, TOP)
    rows = compute_ticks(y_axis.low, y_axis.high)
    columns = _drop_overlapping(sorted(set(xs)), x_axis) if log_x else compute_ticks(x_axis.low, x_axis.high)
    if all(value == int(value) for value in xs):  # steps
        columns = [value for value in columns if value == int(value)] or columns
    whiskers = sum(bool(line.band) for line in lines) > MAX_BANDS
    parts = [
        *(_draw_gridline(y_axis.scale(value), format_tick(value, rows)) for value in rows),
        *(_draw_tick(x_axis.scale(value), format_tick(value, columns)) for value in columns),
        element("text", x, x=(LEFT + WIDTH) / 2, y=HEIGHT - 4, kind="middle name"),
        *(
            _draw_series(
                line,
                x_axis,
                y_axis,
                whiskers=whiskers,
                offset=WHISKER_SPACING * (place - (len(lines) - 1) / 2) if whiskers else 0,
            )
            for place, line in enumerate(lines)
        ),
    ]
    chart = element(
        "svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title or f"{y} by {x}", kind="chart"
    )
    names = [
        element("span", element("i", kind=f"key c{line.colour % COLOUR_COUNT} {line.style}"), line.name, kind="label")
        for line in lines
        if line.name
    ]
    top = element("p", title or y, kind="above")
    return element("figure", top, chart, element("figcaption", *names))


def draw_interval_chart(low: float | None, value: float, high: float | None, span: tuple[float, float]) -> Markup:
    """Draw a dot with its interval, on the common scale of a table."""
    axis = Axis(*span, 4, 136)
    parts = [element("line", x1=4, x2=136, y1=9, y2=9, kind="rule")]
    if low is not None and high is not None:
        ends = [min(max(axis.scale(end), 4), 136) for end in (low, high)]
        parts.append(element("line", x1=ends[0], x2=ends[1], y1=9, y2=9, kind="reach"))
    parts.append(element("circle", cx=axis.scale(value), cy=9, r=4.5, kind="dot"))
    return element("svg", *parts, viewBox="0 0 140 18", kind="tiny", aria_hidden="true")


def draw_magnitude_chart(rows: Sequence[tuple[str, float, bool]], *, unit: str, labels: Sequence[str]) -> Markup:
    """Draw bars on a logarithmic scale; rows are (name, value, highlighted), `labels` the values as text."""
    positive = [value for _, value, _ in rows if value > 0]
    if not positive:
        return NO_MARKUP
    axis = Axis(min(positive) / 3, max(positive) * 1.2, 0, 100, is_log=True)
    bars = [
        element(
            "div",
            element("span", name, kind="what"),
            element(
                "span", element("b", style=f"width:{max(axis.scale(value), 1) if value > 0 else 0}%"), kind="track"
            ),
            element("span", text, kind="much"),
            kind="bar ours" if ours else "bar",
        )
        for (name, value, ours), text in zip(rows, labels, strict=True)
    ]
    return element("div", *bars, kind="bars", role="img", aria_label=f"{unit}, logarithmic scale")


def compute_ticks(low: float, high: float, max_ticks: int = 5) -> list[float]:
    """Return round numbers between two values.

    >>> compute_ticks(0, 100), compute_ticks(0.62, 0.81)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.65, 0.7, 0.75, 0.8])
    """
    rough = (high - low) / max_ticks
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def format_tick(value: float, values: Sequence[float]) -> str:
    """Format a tick label with as many digits as distinguish it from the others.

    >>> format_tick(0.65, [0.65, 0.7]), format_tick(2000, [0, 2000]), format_tick(2.5, [2.5, 5])
    ('0.65', '2k', '2.5')
    """
    if max(map(abs, values)) >= 1000:
        return format_number(value)
    gap = min((abs(right - left) for left, right in itertools.pairwise(values)), default=1.0)
    digits = next((count for count in range(6) if abs(round(gap, count) - gap) < 1e-9), 6)
    return f"{value:.{digits}f}"


def downsample(series: Series) -> Series:
    """Reduce a line to at most `MAX_POINTS` points, the means of equal parts."""
    points = series.points
    if len(points) <= MAX_POINTS:
        return series
    cuts = [len(points) * part // MAX_POINTS for part in range(MAX_POINTS + 1)]
    groups = [points[start:end] for start, end in itertools.pairwise(cuts)]
    means = tuple((group[-1][0], math.fsum(y for _, y in group) / len(group)) for group in groups)
    return Series(series.name, means, series.band, series.colour, series.style)


def _fit_axis(values: Sequence[float], start: float, end: float, *, is_log: bool = False) -> Axis:
    low, high = min(values), max(values)
    if is_log:
        return Axis(low, high if high > low else 2 * low, start, end, is_log=True)
    if high - low < 1e-9 * max(abs(high), 1e-9):
        low, high = low - max(abs(low) * 0.1, 0.01), high + max(abs(high) * 0.1, 0.01)
    edge = 0.04 * (high - low) if start > end else 0.0  # margin above and below
    return Axis(low - edge, high + edge, start, end)


def _drop_overlapping(values: Sequence[float], axis: Axis) -> list[float]:
    """Return the values whose labels do not overlap the previous one."""
    labels: list[float] = []
    for value in values:
        if not labels or axis.scale(value) - axis.scale(labels[-1]) >= 40:
            labels.append(value)
    return labels


def _draw_gridline(y: float, label: str) -> Markup:
    return join(
        [
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, kind="rule"),
            element("text", label, x=LEFT - 6, y=y + 4, kind="end"),
        ]
    )


def _draw_tick(x: float, label: str) -> Markup:
    return element("text", label, x=x, y=HEIGHT - BOTTOM + 16, kind="middle")


def _draw_series(series: Series, x_axis: Axis, y_axis: Axis, *, whiskers: bool, offset: float) -> Markup:
    """Draw a line with its points; `offset` shifts it sideways, so that whiskers do not overlap."""
    colour = f"c{series.colour % COLOUR_COUNT}"
    places = [(round(x_axis.scale(x) + offset, 1), y_axis.scale(y)) for x, y in series.points]
    parts: list[Markup] = []
    if whiskers:
        ends = [
            (round(x_axis.scale(x) + offset, 1), y_axis.scale(low), y_axis.scale(high)) for x, low, high in series.band
        ]
        parts += [element("line", x1=x, x2=x, y1=low, y2=high, kind=f"whisker {colour}") for x, low, high in ends]
    elif series.band:
        upper = [f"{x_axis.scale(x)},{y_axis.scale(high)}" for x, _, high in series.band]
        lower = [f"{x_axis.scale(x)},{y_axis.scale(low)}" for x, low, _ in reversed(series.band)]
        parts.append(element("path", d=f"M{' '.join(upper + lower)}Z", kind=f"band {colour}"))
    if series.style != "dots" and len(places) > 1:
        line = " ".join(f"{x},{y}" for x, y in places)
        parts.append(element("path", d=f"M{line}", kind=f"line {colour} {series.style}"))
    if len(places) <= 12 or series.style == "dots":
        parts += [element("circle", cx=x, cy=y, r=3, kind=f"point {colour}") for x, y in places]
    return join(parts)
