"""Pictures of analyses as .svg or .png, by matplotlib. Each takes the plain data of a result (`to_dict`).

Texts of data are drawn literally: no mathematics, control characters escaped. Classes and labels differ by letter or
marker as well as by colour, so that a picture can be read without colours.
"""

import io
import os
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pretune.analysis.attention_patterns import CLASSES, LETTERS
from pretune.core.api import Result
from pretune.core.errors import UsageError
from pretune.core.io import atomic_write
from pretune.core.log import escape, format_count

Facts = Mapping[str, Any]
FORMATS = (".svg", ".png")
COLOURS = ("#c6d4ec", "#6d9fd6", "#7fcbd8", "#6cc29f", "#eeb35c", "#e58e86", "#bfa3da", "#e9ebee")
"""Colours of `CLASSES`: the last, mixed, is grey."""
SERIES_COLOURS = ("#2f6fb2", "#c9605b", "#3c9a76", "#8a63b3", "#c98a1b", "#2b94ab", "#7b6b3a", "#6b7280")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
MAX_LABELS = 20
"""Maximum number of labels in the legend of a map; the rarest are drawn together."""
INK, SOFT, RULE, CELL_INK = "#1c2430", "#5b6675", "#dfe3e8", "#1c2431"
"""Colours of texts and rules, which a report replaces by those of its theme; not that of texts in coloured cells."""
DPI = 144


class Analysis(Result):
    """Base of the results of analyses: each can be drawn."""

    __slots__ = ()

    def draw(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture as .svg or .png; return its path."""
        file = Path(path)
        if file.suffix not in FORMATS:
            raise UsageError(f"'{file}': the name of a picture must end in {' or '.join(FORMATS)}")
        return _save(draw_analysis(self.to_dict()), file)


def draw_analysis(facts: Facts) -> Any:
    """Return the figure of an analysis of any kind; texts are no mathematics."""
    import matplotlib as mpl

    with mpl.rc_context({"text.parse_math": False}):
        return DRAWERS[facts["kind"]](facts)


def draw_heads(facts: Facts) -> Any:
    """Draw layers x heads of each part, lettered and coloured by class, with a legend of the shares."""
    parts = list_head_classes(facts)
    size = 0.36
    widths = [max(len(rows[0]) * size + 0.9, 2.2) for rows in parts.values()]
    depth = max(len(rows) for rows in parts.values())
    legend_width = 2.3 + 0.4 * (len(parts) - 1)  # of a share for each part
    figure = _build_figure(sum(widths) + legend_width, max(depth * size + 1.0, 3.1))
    grid = figure.add_gridspec(1, len(parts) + 1, width_ratios=[*widths, legend_width])
    for place, (part, rows) in enumerate(parts.items()):
        axes = figure.add_subplot(grid[0, place])
        for layer, row in enumerate(rows):
            for head, name in enumerate(row):
                _add_cell(axes, head, layer, COLOURS[CLASSES.index(name)], LETTERS[name])
        _finish_grid(axes, _number(rows[0]), _number(rows), size=8, ink=SOFT)
        axes.set_aspect("equal")
        axes.set_title(f"{part} heads", fontsize=10, color=INK, loc="left")
        axes.set_xlabel("head", fontsize=9, color=SOFT)
        axes.set_ylabel("layer", fontsize=9, color=SOFT)
    _draw_class_legend(figure.add_subplot(grid[0, len(parts)]), facts)
    return figure


def list_head_classes(facts: Facts) -> dict[str, list[list[str]]]:
    """Return the classes of all heads by part and layer."""
    parts: dict[str, dict[int, list[str]]] = {}
    for head in facts["heads"]:
        parts.setdefault(head["part"], {}).setdefault(head["layer"], []).append(head["class"])
    return {part: [*layers.values()] for part, layers in parts.items()}


def _draw_class_legend(axes: Any, facts: Facts) -> None:
    """Draw a row per class: its colour and letter, its name, and its share of the heads of every part."""
    axes.axis("off")
    names = [name for name in CLASSES if any(shares.get(name) for shares in facts["shares"].values())]
    for row, name in enumerate(names):
        _add_cell(axes, 0, row, COLOURS[CLASSES.index(name)], LETTERS[name], clip=False)
        shares = " / ".join(f"{shares.get(name, 0):.0%}" for shares in facts["shares"].values())
        axes.text(0.75, row, f"{name}  {shares}", va="center", fontsize=9, color=INK)
    note = f"{format_count(facts['texts'], 'texts')}, {format_count(facts['tokens'], 'tokens')}"
    axes.text(-0.5, len(names) + 0.1, note, va="center", fontsize=8, color=SOFT)
    axes.set_xlim(-0.6, 6.2 + 1.2 * (len(facts["shares"]) - 1))
    axes.set_ylim(max(len(names) + 0.6, 7.5), -0.6)


def draw_view(facts: Facts) -> Any:
    """Draw the tokens in two columns, with a line from each to those it attends to, as strong as the weight."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    tokens, keys = ([_clip_text(name, 16) for name in facts[side]] for side in ("tokens", "keys"))
    weights = np.asarray(facts["weights"], dtype=float)
    rows = max(len(tokens), len(keys))
    figure = _build_figure(5.2, max(0.24 * rows + 0.9, 2.2))
    axes = figure.add_subplot()
    strongest = max(float(weights.max()), 1e-9)
    strokes = []
    for query, row in enumerate(weights):
        for key, weight in enumerate(row):
            strength = float(weight) / strongest
            if strength >= 0.02:
                colour = to_rgba(SERIES_COLOURS[query % 6], 0.08 + 0.92 * strength)
                strokes.append((0.3 + 2.4 * strength, [(0.0, query), (1.0, key)], colour))
    strokes.sort(key=lambda stroke: stroke[0])  # the strongest on top
    widths, lines, colours = zip(*strokes, strict=True) if strokes else ((), (), ())
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=widths))
    style = {"va": "center", "fontsize": 9}
    for place, name in enumerate(tokens):
        axes.text(-0.03, place, name, ha="right", color=SERIES_COLOURS[place % 6], **style)
    for place, name in enumerate(keys):
        axes.text(1.03, place, name, ha="left", color=INK, **style)
    axes.text(-0.03, -1.1, "from", ha="right", va="center", fontsize=8, color=SOFT)
    axes.text(1.03, -1.1, "to", ha="left", va="center", fontsize=8, color=SOFT)
    axes.set_xlim(-0.62, 1.62)
    axes.set_ylim(rows - 0.3, -1.6)
    axes.axis("off")
    axes.set_title(f"{facts['title']} (strongest line: {strongest:.2f})", fontsize=9, color=INK)
    return figure


def draw_layers(facts: Facts) -> Any:
    """Draw accuracy, control accuracy and selectivity by layer, and the weights of the scalar mix, for each task."""
    tasks = facts["tasks"]
    figure = _build_figure(3.5 * len(tasks) + 0.4, 4.6)
    grid = figure.add_gridspec(2, len(tasks), height_ratios=[2.4, 1])
    for column, task in enumerate(tasks):
        axes = figure.add_subplot(grid[0, column])
        layers = [row["layer"] for row in task["layers"]]
        styles = zip(
            ("accuracy", "control", "selectivity"), "os^", ("-", (0, (3, 2)), "-"), SERIES_COLOURS, strict=False
        )
        for name, marker, line, colour in styles:
            means = np.array([row[name] for row in task["layers"]])
            spread = np.array([row.get(f"{name}_std") or 0.0 for row in task["layers"]])
            style = {"marker": marker, "markersize": 4, "linewidth": 1.5, "linestyle": line}
            axes.plot(layers, means, color=colour, label=name, **style)
            if spread.any():
                axes.fill_between(layers, means - spread, means + spread, color=colour, alpha=0.15)
        axes.axhline(task["majority"], color=SOFT, linewidth=1, linestyle=":", label="majority")
        axes.set_title(task["task"], fontsize=10, color=INK, loc="left")
        axes.set_ylim(min(-0.02, *(row["selectivity"] - 0.05 for row in task["layers"])), 1.02)
        axes.set_xticks(layers)
        _style(axes)
        if column == 0:
            legend = axes.get_legend_handles_labels()
            figure.legend(*legend, loc="outside upper right", ncols=4, fontsize=8, frameon=False)
        mix_axes = figure.add_subplot(grid[1, column])
        if task["mix"] is not None:
            mix_axes.bar(layers, task["mix"]["weights"], color=SERIES_COLOURS[5], width=0.7)
        else:
            mix_axes.text(0.5, 0.5, "no scalar mix", ha="center", va="center", color=SOFT, transform=mix_axes.transAxes)
        mix_axes.set_xticks(layers)
        mix_axes.set_xlabel("layer (0: embeddings)", fontsize=9, color=SOFT)
        mix_axes.set_title("weights of the scalar mix", fontsize=9, color=SOFT, loc="left")
        _style(mix_axes)
    return figure


def draw_map(facts: Facts) -> Any:
    """Draw the points of an embedding map, with a colour and a marker for each label."""
    points = facts["points"]
    groups = group_points(points)
    figure = _build_figure(6.4 if len(groups) > 1 else 5.2, 4.6)
    axes = figure.add_subplot()
    style = {"s": 26 if len(points) < 500 else 12, "alpha": 0.75, "linewidths": 0}
    for place, members in enumerate(groups.values()):
        xs, ys = ([point[axis] for point in members] for axis in "xy")
        colour, marker = SERIES_COLOURS[place % len(SERIES_COLOURS)], MARKERS[place % len(MARKERS)]
        axes.scatter(xs, ys, color=colour, marker=marker, label=str(place), **style)
    if len(groups) > 1:
        legend = axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)
        for text, label in zip(legend.get_texts(), groups, strict=True):  # NOTE: matplotlib omits labels such as "_a".
            text.set_text(_clip_text(label, 28))
    axes.set_xlabel(facts["axes"][0], fontsize=9, color=SOFT)
    axes.set_ylabel(facts["axes"][1], fontsize=9, color=SOFT)
    _style(axes)
    return figure


def group_points(points: Sequence[Facts]) -> dict[str, list[Facts]]:
    """Return the points by label, the most frequent first; rare labels beyond `MAX_LABELS` are one group."""
    groups: dict[str, list[Facts]] = {}
    for point in points:
        groups.setdefault("" if point["label"] is None else str(point["label"]), []).append(point)
    label_order = sorted(groups, key=lambda label: (-len(groups[label]), label))
    count = len(label_order) if len(label_order) <= MAX_LABELS else MAX_LABELS - 1
    top = {label: groups[label] for label in label_order[:count]}
    rare = [point for label in label_order[len(top) :] for point in groups[label]]
    return top | ({f"{len(label_order) - len(top)} rarer labels": rare} if rare else {})


def draw_changes(facts: Facts) -> Any:
    """Draw the relative change of every layer and kind of weights, as shaded cells with numbers."""
    rows = facts["layers"]
    kinds = list_kinds(rows)
    figure = _build_figure(1.05 * (len(kinds) + 1) + 1.9, 0.3 * len(rows) + 1.3)
    axes = figure.add_subplot()
    changes = [change for row in rows for change in (row, *row["kinds"].values())]
    largest = max((change["distance"] or 0.0 for change in changes), default=0.0) or 1.0
    for place, row in enumerate(rows):
        for column, name in enumerate(["all", *kinds]):
            values = row if name == "all" else row["kinds"].get(name)
            if values is not None:
                distance = values["distance"]  # None: the weights were 0
                share = 1.0 if distance is None else min(distance / largest, 1.0)
                colour = _blend("#ffffff", SERIES_COLOURS[0], 0.05 + 0.75 * share)
                ink = "#ffffff" if share > 0.6 else CELL_INK
                _add_cell(axes, column, place, colour, "new" if distance is None else f"{distance:.2%}", ink=ink)
    _finish_grid(axes, ["all", *kinds], [row["layer"] for row in rows], size=9, ink=INK)
    axes.xaxis.tick_top()
    axes.set_title("relative change |after - before| / |before|", fontsize=9, color=SOFT, loc="left")
    return figure


def list_kinds(rows: Sequence[Facts]) -> list[str]:
    """Return the kinds of weights of all layers, in order of first appearance."""
    return [*dict.fromkeys(kind for row in rows for kind in row["kinds"])]


def _build_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _add_cell(axes: Any, x: float, y: float, colour: str, text: str, *, ink: str = CELL_INK, clip: bool = True) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, facecolor=colour, linewidth=0, clip_on=clip))
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color=ink, clip_on=False)


def _number(items: Sequence[object]) -> list[str]:
    return [str(number) for number in range(1, len(items) + 1)]


def _finish_grid(axes: Any, columns: Sequence[str], rows: Sequence[str], *, size: int, ink: str) -> None:
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns, fontsize=size, color=ink)
    axes.set_yticks(range(len(rows)), rows, fontsize=size, color=ink)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _style(axes: Any) -> None:
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8, labelcolor=SOFT)
    axes.spines[:].set_visible(False)


def _clip_text(text: str, length: int) -> str:
    """Return a text for a picture: escaped, in one line, at most so many characters."""
    line = escape(text)
    if " " in text:
        return textwrap.shorten(line, length, placeholder="…")
    return line if len(line) <= length else f"{line[: length - 1]}…"


def _blend(first: str, second: str, share: float) -> str:
    """Return a colour between two.

    >>> _blend("#000000", "#ffffff", 0.5)
    '#808080'
    """
    from matplotlib.colors import to_hex, to_rgb

    r, g, b = (a + (b - a) * share for a, b in zip(to_rgb(first), to_rgb(second), strict=True))
    return str(to_hex((r, g, b)))


def _save(figure: Any, file: Path) -> Path:
    """Write a figure; the same data gives the same bytes. The text of an SVG stays text."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    options: dict[str, Any] = {"metadata": {"Date": None}} if file.suffix == ".svg" else {"dpi": DPI}
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pretune"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a PNG shows a box for a character without a glyph
        figure.savefig(buffer, format=file.suffix[1:], **options)
    atomic_write(file, buffer.getvalue())
    return file


DRAWERS: Mapping[str, Callable[[Facts], Any]] = {
    "attention": draw_heads,
    "attention-text": draw_view,
    "layers": draw_layers,
    "embeddings": draw_map,
    "forgetting": draw_changes,
    "diff": draw_changes,
}
"""Function of each kind of analysis that returns its figure."""
