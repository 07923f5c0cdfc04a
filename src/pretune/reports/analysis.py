"""Analyses of a run in its report: the files that `pretune analyze … --out RUN/analysis` wrote.

RUN/analysis/attention.json   layers x heads by class       attention-text.json   who attends to whom
RUN/analysis/layers.json      probes by layer               embeddings.json       map of texts
RUN/analysis/diff.json        change of every layer         forgetting.json       loss before and after
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

from pretune.analysis.attention_patterns import CLASSES, LETTERS, MEASURED_PATTERNS
from pretune.analysis.pictures import draw_analysis, group_points, list_head_classes, list_kinds
from pretune.core.config import Amount, Count, Number, check_record
from pretune.core.errors import DataError
from pretune.core.io import read_json
from pretune.core.log import Section, format_count
from pretune.core.run_dir import RunDir
from pretune.reports import Markup, element, join, note, table
from pretune.reports.charts import to_svg
from pretune.reports.facts import Facts, is_number

MAX_LISTED = 3
"""Tokens listed for each token of a text."""
MIN_LISTED_WEIGHT = 0.05
PROBE_NOTE = (
    "Accuracy of a linear probe on test items, on a control task with random labels by word type, and their difference "
    "(selectivity); mix is the weight of the layer in a scalar mix of all. Layer 0 is the input of the first layer."
)


class Description(NamedTuple):
    """Analysis as tables, with a note."""

    title: str
    sections: list[Section]
    note: str


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
    """diff.json."""

    before: str
    after: str
    layers: list[LayerChangeRecord]
    added: NotRequired[Count]
    removed: NotRequired[Count]


class ForgettingFile(ChangesFile):
    """forgetting.json."""

    objective: str
    data: str
    loss: LossChangeRecord


def load_analyses(directory: Path) -> list[Facts]:
    """Return the analyses of a run, in the order of `KINDS`; raise a DataError for a damaged file."""
    analyses: list[Facts] = []
    for kind, (record, _) in KINDS.items():
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
        measures = (*MEASURED_PATTERNS, "entropy")
        is_valid &= all(head.get("class") in CLASSES for head in facts["heads"])
        is_valid &= all(is_number(head.get(name)) for head in facts["heads"] for name in measures)
        is_valid &= [*list_head_classes(facts)] == [*facts["shares"]] != []
        is_valid &= all(len({*map(len, layers)}) == 1 for layers in list_head_classes(facts).values())
    elif kind == "attention-text":
        is_valid &= len(facts["weights"]) == len(facts["tokens"]) > 0 and bool(facts["keys"])
        is_valid &= all(len(row) == len(facts["keys"]) for row in facts["weights"])
    elif kind == "layers":
        is_valid &= bool(facts["tasks"]) and all(task["layers"] for task in facts["tasks"])
        is_valid &= all(
            task["mix"] is None or len(task["mix"]["weights"]) == len(task["layers"]) for task in facts["tasks"]
        )
    elif kind == "forgetting":
        is_valid &= all("loss" in facts["loss"][side] for side in ("before", "after"))
    if not is_valid:
        raise DataError(
            f"{path}: not an analysis of the kind '{kind}'; run `pretune analyze` again, or remove the file"
        )


def describe_analysis(facts: Facts) -> Description:
    """Return an analysis of any kind as tables, with a note."""
    return KINDS[facts["kind"]][1](facts)


def render_analyses(runs: Sequence[tuple[str, Sequence[Facts]]]) -> Markup:
    """Render the analyses of runs, by name: the tables that the terminal shows, and the picture."""
    parts: list[Markup] = []
    for name, analyses in runs:
        for facts in analyses:
            title, sections, note_text = describe_analysis(facts)
            parts += [element("h3", f"{name}: {title}" if len(runs) > 1 else title), note(note_text)]
            for section in sections:
                parts += [element("p", section.title, kind="above"), table(section.header or (), section.rows)]
            parts.append(element("figure", to_svg(draw_analysis(facts), title)))
    return join(parts)


def _describe_heads(facts: Facts) -> Description:
    """Return the classes of all heads: layers x heads by letter, shares, and the strongest head of each."""
    sections = []
    for part, layers in list_head_classes(facts).items():
        rows = [(f"layer {number}", *(LETTERS[name] for name in row)) for number, row in enumerate(layers, 1)]
        header = ("", *(str(number) for number in range(1, len(layers[0]) + 1)))
        sections.append(Section(title=f"{part}: layers x heads", rows=rows, header=header, align_right=True))
    rows = []
    for name in CLASSES:
        for part, shares in facts["shares"].items():
            members = [head for head in facts["heads"] if head["class"] == name and head["part"] == part]
            if members:
                share = f"{shares.get(name, 0):.0%}"
                rows.append((LETTERS[name], name, part, share, _describe_strongest(name, members)))
    header = ("", "class", "part", "share", "strongest: layer-head, mean attention")
    sections.append(Section(title="classes", rows=rows, header=header))
    thresholds = facts["thresholds"]
    about = (
        f"Text: {facts['source']}, {format_count(facts['tokens'], 'tokens')}. A head has the pattern with the most "
        f"attention if that is at least {thresholds['pattern']:g} beyond uniform attention; else it is broad from a "
        f"relative entropy of {thresholds['broad']:g}, or mixed."
    )
    return Description(f"attention heads over {format_count(facts['texts'], 'texts')}", sections, about)


def _describe_strongest(name: str, heads: Sequence[Facts]) -> str:
    key = name if name in heads[0] else "entropy"
    best = max(heads, key=lambda head: float(head[key]))
    value = f"{best[key]:.2f}" if key != "entropy" else f"relative entropy {best[key]:.2f}"
    return f"{best['layer']}-{best['head']}, {value}"


def _describe_view(facts: Facts) -> Description:
    """Return the strongest keys of every token."""
    rows = []
    for number, (token, weights) in enumerate(zip(facts["tokens"], facts["weights"], strict=True), 1):
        order = sorted(range(len(weights)), key=lambda place: -weights[place])[:MAX_LISTED]
        targets = [f"{facts['keys'][i]} ({i + 1}) {weights[i]:.2f}" for i in order if weights[i] >= MIN_LISTED_WEIGHT]
        rows.append((str(number), token, ", ".join(targets)))
    title = "each token and those it attends to most (number, weight)"
    sections = [Section(title=title, rows=rows, header=("", "from", "to"))]
    about = "The weights of a token sum to 1, less what a learned prefix gets."
    return Description(f"attention: {facts['title']}", sections, about)


def _describe_layers(facts: Facts) -> Description:
    """Return the probes of each task by layer."""
    sections = []
    for task in facts["tasks"]:
        mix_weights = [None] * len(task["layers"]) if task["mix"] is None else task["mix"]["weights"]
        rows = [
            (
                f"layer {row['layer']}",
                *(_format_score(row[name], row.get(f"{name}_std")) for name in ("accuracy", "control", "selectivity")),
                "-" if weight is None else f"{weight:.2f}",
            )
            for row, weight in zip(task["layers"], mix_weights, strict=True)
        ]
        about = f"{task['train']:,} training and {task['test']:,} test items of {task['source'] or 'the texts'}"
        mix = "" if task["mix"] is None else f", scalar mix {task['mix']['accuracy']:.3f}"
        title = f"{task['task']} ({about}; majority {task['majority']:.3f}{mix})"
        header = ("", "accuracy", "control", "selectivity", "mix")
        sections.append(Section(title=title, rows=rows, header=header, align_right=True))
    return Description("probes of every layer", sections, PROBE_NOTE)


def _format_score(mean: float, std: float | None) -> str:
    return f"{mean:.3f}" if std is None else f"{mean:.3f} ± {std:.3f}"


def _describe_map(facts: Facts) -> Description:
    """Return the labels of a map with their numbers, and how often neighbours agree."""
    rows = [("axes", "; ".join(facts["axes"]))]
    sections = [Section(title="map", rows=rows)]
    if facts["neighbor_agreement"] is not None:
        chance = f"(by chance {facts['chance_agreement'] or 0.0:.3f})"
        rows.append(("nearest neighbor has the label", f"{facts['neighbor_agreement']:.3f} {chance}"))
        label_rows = [
            (label, str(len(points)), *(f"{sum(p[axis] for p in points) / len(points):.2f}" for axis in "xy"))
            for label, points in group_points(facts["points"]).items()
        ]
        header = ("", "texts", "mean x", "mean y")
        sections.append(Section(title="labels", rows=label_rows, header=header, align_right=True))
    method = {"pca": "PCA", "tsne": "t-SNE"}.get(facts["method"], facts["method"])
    title = f"map of {format_count(facts['texts'], 'texts')} by {method}"
    return Description(title, sections, "Embeddings in two dimensions.")


def _describe_changes(facts: Facts) -> Description:
    """Return the change of every layer and kind of weights."""
    kinds = list_kinds(facts["layers"])
    rows = [
        (
            row["layer"],
            _format_distance(row),
            f"{row['cosine']:.5f}",
            *(_format_distance(row["kinds"].get(k)) for k in kinds),
        )
        for row in facts["layers"]
    ]
    rows.append(("all", _format_distance(facts), f"{facts['cosine']:.5f}", *("" for _ in kinds)))
    header = ("", "distance", "cosine", *kinds)
    sections = [Section(title="relative change by layer and part", rows=rows, header=header, align_right=True)]
    counts = [(name, f"{facts[name]:,} parameters") for name in ("added", "removed") if facts.get(name)]
    sections += [Section(title="only in one model", rows=counts)] if counts else []
    title = f"weights moved by {_format_distance(facts)}"
    return Description(title, sections, f"From {facts['before']} to {facts['after']}.")


def _format_distance(change: Facts | None) -> str:
    if change is None:
        return ""
    return "new" if change["distance"] is None else f"{change['distance']:.3%}"


def _describe_forgetting(facts: Facts) -> Description:
    """Return the losses before and after, and the change of the weights."""
    initial, final = facts["loss"]["before"], facts["loss"]["after"]
    rows = [
        (name, f"{value:.4f}", f"{final[name]:.4f}", f"{final[name] - value:+.4f}")
        for name, value in initial.items()
        if name in final
    ]
    losses = Section(title="validation", rows=rows, header=("", "before", "after", "difference"), align_right=True)
    title = f"pre-training loss {initial['loss']:.4f} before, {final['loss']:.4f} after"
    about = f"{facts['objective']} loss on {facts['data']}; the run started from {facts['before']}."
    return Description(title, [losses, *_describe_changes(facts).sections], about)


KINDS: Mapping[str, tuple[type, Callable[[Facts], Description]]] = {
    "attention": (HeadsFile, _describe_heads),
    "attention-text": (ViewFile, _describe_view),
    "layers": (LayersFile, _describe_layers),
    "embeddings": (MapFile, _describe_map),
    "forgetting": (ForgettingFile, _describe_forgetting),
    "diff": (ChangesFile, _describe_changes),
}
"""Record and description of every kind of analysis."""
