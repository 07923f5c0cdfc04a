"""Analyses of a run in its report: the files that `pretune analyze … --out RUN/analysis` wrote.

RUN/analysis/attention.json   layers x heads by class       attention-text.json   who attends to whom
RUN/analysis/layers.json      probes by layer               embeddings.json       map of texts
RUN/analysis/diff.json        change of every layer         forgetting.json       loss before and after
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from pretune.analysis.attention_patterns import CLASSES, LETTERS
from pretune.analysis.pictures import MARKERS, group_points, list_head_classes, list_kinds
from pretune.core.config import Amount, Count, Number, check_record
from pretune.core.errors import DataError
from pretune.core.io import read_json
from pretune.core.log import format_count
from pretune.core.run_dir import RunDir
from pretune.reports import NO_MARKUP, Markup, element, join, note, table
from pretune.reports.charts import Series, draw_line_chart

Facts = Mapping[str, Any]
CLASS_COLOURS = dict(zip(CLASSES, (0, 5, 2, 3, 1, 4, 6, 7), strict=True))
"""Colour of each class among those of the page."""
MIN_FULL_COLOUR = 0.3
"""Attention weight from which a cell may have its full colour."""


class HeadRecord(TypedDict):
    """A head and its class."""

    part: str
    layer: Count
    head: Count
    # NOTE: "class" is a keyword; it is checked in `load_analyses`.


class ThresholdRecord(TypedDict):
    """Thresholds of the classes."""

    pattern: Number
    broad: Number


class HeadsFile(TypedDict):
    """attention.json."""

    source: str
    texts: Count
    tokens: Count
    thresholds: ThresholdRecord
    shares: dict[str, dict[str, Number]]
    heads: list[HeadRecord]


class ViewFile(TypedDict):
    """attention-text.json."""

    title: str
    tokens: list[str]
    keys: list[str]
    weights: list[list[Number]]


class LayerScoreRecord(TypedDict):
    """Scores of the probes of a layer."""

    layer: Count
    accuracy: Number
    control: Number
    selectivity: Number


class MixRecord(TypedDict):
    """A scalar mix."""

    weights: list[Number]
    accuracy: Number


class TaskProbeRecord(TypedDict):
    """Probes of a task."""

    task: str
    source: str
    train: Count
    test: Count
    majority: Number
    layers: list[LayerScoreRecord]
    mix: MixRecord | None


class LayersFile(TypedDict):
    """layers.json."""

    seeds: Count
    tasks: list[TaskProbeRecord]


class PointRecord(TypedDict):
    """A text on a map."""

    x: Number
    y: Number
    label: str | None


class MapFile(TypedDict):
    """embeddings.json."""

    method: str
    axes: tuple[str, str]
    texts: Count
    neighbor_agreement: Number | None
    chance_agreement: Number | None
    points: list[PointRecord]


class ChangeRecord(TypedDict):
    """Change of some weights."""

    distance: Amount | None
    cosine: Number


class LayerChangeRecord(ChangeRecord):
    """Change of a layer."""

    layer: str
    kinds: dict[str, ChangeRecord]


class LossChangeRecord(TypedDict):
    """Losses before and after a run."""

    before: dict[str, Number]
    after: dict[str, Number]
    difference: Number


class ChangesFile(ChangeRecord):
    """diff.json, and with a loss forgetting.json."""

    before: str
    after: str
    layers: list[LayerChangeRecord]
    objective: NotRequired[str]
    data: NotRequired[str]
    loss: NotRequired[LossChangeRecord]


def load_analyses(directory: Path) -> list[Facts]:
    """Return the analyses of a run, in the order of `RENDERERS`; raise a DataError for a damaged file."""
    analyses: list[Facts] = []
    for kind, (record, _) in RENDERERS.items():
        path = RunDir(directory).analysis / f"{kind}.json"
        if path.is_file():
            facts = read_json(path, DataError)
            check_record(record, facts, DataError, str(path))
            _check(facts, kind, path)
            analyses.append(facts)
    return analyses


def _check(facts: Facts, kind: str, path: Path) -> None:
    """Raise a DataError if the file is of another kind, or its lists do not fit together."""
    is_valid = facts.get("kind") == kind
    if kind == "attention":
        is_valid &= bool(facts["heads"]) and all(head.get("class") in CLASSES for head in facts["heads"])
    elif kind == "attention-text":
        is_valid &= len(facts["weights"]) == len(facts["tokens"])
        is_valid &= all(len(row) == len(facts["keys"]) for row in facts["weights"])
    elif kind == "layers":
        is_valid &= all(task["layers"] for task in facts["tasks"])
        is_valid &= all(
            task["mix"] is None or len(task["mix"]["weights"]) == len(task["layers"]) for task in facts["tasks"]
        )
    if not is_valid:
        raise DataError(
            f"{path}: not an analysis of the kind '{kind}'; run `pretune analyze` again, or remove the file"
        )


def render_analyses(runs: Sequence[tuple[str, Sequence[Facts]]]) -> Markup:
    """Render the analyses of runs, by name."""
    parts: list[Markup] = []
    for name, analyses in runs:
        for facts in analyses:
            title = f"{name}: " if len(runs) > 1 else ""
            parts.append(RENDERERS[facts["kind"]][1](facts, title))
    return join(parts)


def _render_heads(facts: Facts, title: str) -> Markup:
    parts = [element("h3", f"{title}attention heads")]
    thresholds = facts["thresholds"]
    parts.append(
        note(
            f"{format_count(facts['texts'], 'texts')} ({facts['source']}). A head has the pattern with the most "
            f"attention if that is at least {thresholds['pattern']:g} beyond uniform attention; else it is broad from "
            f"a relative entropy of {thresholds['broad']:g}, or mixed."
        )
    )
    for part, layers in list_head_classes(facts).items():
        head = ("layer", *(str(number) for number in range(1, len(layers[0]) + 1)))
        rows = [
            (str(number), *(_render_cell(LETTERS[name], CLASS_COLOURS[name], 1.0, name) for name in row))
            for number, row in enumerate(layers, 1)
        ]
        parts += [element("p", f"{part} heads", kind="above"), table(head, rows, kind="confusion")]
    names = [name for name in CLASSES if any(shares.get(name) for shares in facts["shares"].values())]
    rows = [
        (name, _render_cell(LETTERS[name], CLASS_COLOURS[name], 1.0, name),
         *(f"{shares.get(name, 0):.0%}" for shares in facts["shares"].values()))
        for name in names
    ]  # fmt: skip
    return join([*parts, table(("class", "", *facts["shares"]), rows, kind="confusion")])


def _render_cell(text: str, colour: int, share: float, title: str = "") -> Markup:
    options = {"title": title} if title else {}
    return element("span", text, kind=f"cell c{colour}", style=f"--v:{share:.3f}", **options)


def _render_view(facts: Facts, title: str) -> Markup:
    strongest = max([weight for row in facts["weights"] for weight in row] + [MIN_FULL_COLOUR])
    rows = [
        (token, *(_render_cell(f"{weight:.2f}"[1:] if weight < 0.995 else "1", 0, max(0.0, weight / strongest))
                  for weight in row))
        for token, row in zip(facts["tokens"], facts["weights"], strict=True)
    ]  # fmt: skip
    heading = element("h3", f"{title}attention of one text")
    about = note(f"{facts['title']}. A row is a token, its cells the attention to the tokens of the columns.")
    return join([heading, about, table(("from", *facts["keys"]), rows, kind="confusion")])


def _render_layers(facts: Facts, title: str) -> Markup:
    charts, rows = [], []
    names = ("accuracy", "control", "selectivity")
    for task in facts["tasks"]:
        series = [
            Series(name, tuple((row["layer"], row[name]) for row in task["layers"]), colour=place,
                   style="dashed" if place == 1 else "")
            for place, name in enumerate(names)
        ]  # fmt: skip
        charts.append(draw_line_chart(series, x="layer (0: embeddings)", y=task["task"]))
        if task["mix"] is not None:
            points = tuple(
                (row["layer"], weight) for row, weight in zip(task["layers"], task["mix"]["weights"], strict=True)
            )
            charts.append(
                draw_line_chart([Series("weight", points, colour=5)], x="layer", y=f"{task['task']}: scalar mix")
            )
        best = max(task["layers"], key=lambda row: float(row["accuracy"]))
        mix = "" if task["mix"] is None else f"{task['mix']['accuracy']:.3f}"
        scores = [f"{best[name]:.3f}" for name in names]
        items = (f"{task['majority']:.3f}", mix, f"{task['train']:,}", task["source"])
        rows.append((task["task"], str(best["layer"]), *scores, *items))
    head = ("task", "best layer", *names, "majority", "scalar mix", "training items", "data")
    about = "Linear probes; the control task has random labels by word type, selectivity is the difference."
    return join(
        [element("h3", f"{title}probes of the layers"), note(about), table(head, rows),
         element("div", *charts, kind="charts")]
    )  # fmt: skip


def _render_map(facts: Facts, title: str) -> Markup:
    series = [
        Series(label or "texts", tuple((point["x"], point["y"]) for point in points), colour=place, style="dots",
               marker=MARKERS[place % len(MARKERS)])
        for place, (label, points) in enumerate(group_points(facts["points"]).items())
    ]  # fmt: skip
    agreement, chance, about = facts["neighbor_agreement"], facts["chance_agreement"] or 0.0, ""
    if agreement is not None:
        about = f" The nearest neighbor of a text has its label in {agreement:.1%} (by chance {chance:.1%})."
    chart = draw_line_chart(series, x="first axis", y=f"{facts['axes'][1]} by {facts['axes'][0]}")
    heading = element("h3", f"{title}map of {format_count(facts['texts'], 'texts')}")
    return join([heading, note(f"Embeddings in two dimensions.{about}"), chart])


def _render_changes(facts: Facts, title: str) -> Markup:
    kinds = list_kinds(facts["layers"])
    changes = [change for row in facts["layers"] for change in (row, *row["kinds"].values())]
    largest = max((change["distance"] or 0.0 for change in changes), default=0.0) or 1.0
    rows = []
    for row in facts["layers"]:
        cells = [_render_distance(row["kinds"].get(kind), largest) for kind in kinds]
        rows.append((row["layer"], _render_distance(row, largest), *cells, f"{row['cosine']:.4f}"))
    parts = [element("h3", f"{title}{'forgetting' if 'loss' in facts else 'change of the weights'}")]
    if loss := facts.get("loss"):
        parts.append(
            note(
                f"{facts.get('objective', '')} loss on {facts.get('data', '')}: "
                f"{loss['before'].get('loss', 0):.4f} before, {loss['after'].get('loss', 0):.4f} after "
                f"({loss['difference']:+.4f})."
            )
        )
    parts.append(note(f"From {facts['before']} to {facts['after']}: |after - before| / |before|, and the cosine."))
    return join([*parts, table(("layer", "all", *kinds, "cosine"), rows, kind="confusion")])


def _render_distance(change: Facts | None, largest: float) -> Markup:
    if change is None:
        return NO_MARKUP
    distance = change["distance"]
    share = 1.0 if distance is None else distance / largest
    return _render_cell("new" if distance is None else f"{distance:.2%}", 0, share)


RENDERERS: Mapping[str, tuple[type, Callable[[Facts, str], Markup]]] = {
    "attention": (HeadsFile, _render_heads),
    "attention-text": (ViewFile, _render_view),
    "layers": (LayersFile, _render_layers),
    "embeddings": (MapFile, _render_map),
    "forgetting": (ChangesFile, _render_changes),
    "diff": (ChangesFile, _render_changes),
}
"""Record and renderer of every kind of analysis."""
