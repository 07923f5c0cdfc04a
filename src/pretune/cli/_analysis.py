"""Output of analyses: tables on the terminal, JSON and pictures in files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.cli._output import Section, check_new_file, check_new_folder, find_free_path, hint, print_page
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.hub import is_hub
from pretune.core.io import atomic_write, translate_write_errors
from pretune.core.log import format_count
from pretune.core.run_dir import RunDir

if TYPE_CHECKING:
    from pretune.core.api import Result

SUFFIXES = (".svg", ".png", ".json")
MAX_LISTED = 3
"""Tokens listed for each token of a text."""
MIN_LISTED_WEIGHT = 0.05
PROBE_NOTE = (
    "Accuracy of a linear probe on test items, on a control task with random labels by word type, and their difference "
    "(selectivity); mix is the weight of the layer in a scalar mix of all. Layer 0 is the input of the first layer."
)
Facts = Mapping[str, Any]


def check_out(out: Path | None) -> None:
    """Raise where the file or directory of an analysis cannot be written."""
    if out is None:
        return
    if out.suffix in SUFFIXES:
        check_new_file(out)
    elif out.suffix and not out.is_dir():
        raise UsageError(f"--out '{out}': use a directory, or a file that ends in {', '.join(SUFFIXES)}")
    else:
        check_new_folder(out)


def finish(result: "Result", name: str, out: Path | None, as_json: bool, sections: Sequence[Section], note: str,
           command: Sequence[object], run: str | None = None) -> None:  # fmt: skip
    """Print a result, write its files, and suggest the next command: the analysis with its picture, then the report.

    `command` is the analysis as it was typed, without `--out`; `run` is the directory whose report shows it.
    """
    facts = result.to_dict()
    paths = write_files(result, facts, name, out)
    if as_json:
        log.print_json({**facts, "files": [str(path) for path in paths]} if paths else facts)
        return
    print_page(sections[0].title, note, sections[1:], " ".join(str(path) for path in paths) or "no files (see --out)")
    folder = _find_analyses(run)
    if folder is not None and ((folder / f"{name}.json").is_file() or (out or Path()).resolve() == folder.resolve()):
        hint("report", str(run), "--out", find_free_path("report.html"))
    elif out is None and "-" not in command:
        is_new = folder is not None and not folder.exists()
        place = folder if is_new else find_free_path(f"{name}.svg" if folder is None else folder / f"{name}.json")
        hint("analyze", *command, "--out", place)
    else:
        hint("analyze", "--help")


def _find_analyses(run: str | None) -> Path | None:
    """Return the directory of analyses of a run, which its report shows; None for other models."""
    is_run = run is not None and not is_hub(run) and RunDir(Path(run)).settings.is_file()
    return RunDir(Path(str(run))).analysis if is_run else None


def write_files(result: Any, facts: Facts, name: str, out: Path | None) -> list[Path]:
    """Write the picture or the data to a file, or both to a directory; return the paths."""
    if out is None:
        return []
    if out.suffix in SUFFIXES:
        return [_write(result, facts, out)]
    with translate_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    return [_write(result, facts, out / f"{name}{suffix}") for suffix in (".json", ".svg")]


def _write(result: Any, facts: Facts, path: Path) -> Path:
    if path.suffix == ".json":
        atomic_write(path, (json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
        return path
    drawn_path: Path = result.draw(path)
    return drawn_path


def format_heads(facts: Facts) -> list[Section]:
    """Return the classes of all heads as tables: layers x heads by letter, shares, and the strongest head of each."""
    from pretune.analysis.attention_patterns import CLASSES, LETTERS
    from pretune.analysis.pictures import list_head_classes

    sections = [Section(title=f"attention heads over {format_count(facts['texts'], 'texts')}", rows=[])]
    for part, layers in list_head_classes(facts).items():
        rows = [(f"layer {number}", *(LETTERS[name] for name in row)) for number, row in enumerate(layers, 1)]
        header = ("", *(str(number) for number in range(1, len(layers[0]) + 1)))
        sections.append(Section(title=f"{part}: layers x heads", rows=rows, header=header, align_right=True))
    rows = []
    for name in CLASSES:
        for part, shares in facts["shares"].items():
            members = [head for head in facts["heads"] if head["class"] == name and head["part"] == part]
            if members:
                rows.append((LETTERS[name], name, part, f"{shares[name]:.0%}", _describe_strongest(name, members)))
    header = ("", "class", "part", "share", "strongest: layer-head, mean attention")
    sections.append(Section(title="classes", rows=rows, header=header))
    return sections


def _describe_strongest(name: str, heads: Sequence[Facts]) -> str:
    key = name if name in heads[0] else "entropy"
    best = max(heads, key=lambda head: float(head[key]))
    value = f"{best[key]:.2f}" if key != "entropy" else f"relative entropy {best[key]:.2f}"
    return f"{best['layer']}-{best['head']}, {value}"


def describe_thresholds(facts: Facts) -> str:
    """Return the rule of the classes, with its thresholds."""
    thresholds = facts["thresholds"]
    return (
        f"Text: {facts['source']}, {format_count(facts['tokens'], 'tokens')}. A head has the pattern with the most "
        f"attention if that is at least {thresholds['pattern']:g} beyond uniform attention; else it is broad from a "
        f"relative entropy of {thresholds['broad']:g}, or mixed."
    )


def format_view(facts: Facts) -> list[Section]:
    """Return the strongest keys of every token as a table."""
    rows = []
    for number, (token, weights) in enumerate(zip(facts["tokens"], facts["weights"], strict=True), 1):
        order = sorted(range(len(weights)), key=lambda place: -weights[place])[:MAX_LISTED]
        targets = [f"{facts['keys'][i]} ({i + 1}) {weights[i]:.2f}" for i in order if weights[i] >= MIN_LISTED_WEIGHT]
        rows.append((str(number), token, ", ".join(targets)))
    title = "each token and those it attends to most (number, weight)"
    return [
        Section(title=f"attention: {facts['title']}", rows=[]),
        Section(title=title, rows=rows, header=("", "from", "to")),
    ]


def format_layers(facts: Facts) -> list[Section]:
    """Return the probes of each task as a table of layers."""
    sections = [Section(title="probes of every layer", rows=[])]
    for task in facts["tasks"]:
        rows = []
        for row in task["layers"]:
            cells = [_format_score(row[name], row[f"{name}_std"]) for name in ("accuracy", "control", "selectivity")]
            weight = "-" if task["mix"] is None else f"{task['mix']['weights'][row['layer']]:.2f}"
            rows.append((f"layer {row['layer']}", *cells, weight))
        about = f"{task['train']:,} training and {task['test']:,} test items of {task['source'] or 'the texts'}"
        mix = "" if task["mix"] is None else f", scalar mix {task['mix']['accuracy']:.3f}"
        title = f"{task['task']} ({about}; majority {task['majority']:.3f}{mix})"
        header = ("", "accuracy", "control", "selectivity", "mix")
        sections.append(Section(title=title, rows=rows, header=header, align_right=True))
    return sections


def _format_score(mean: float, std: float | None) -> str:
    return f"{mean:.3f}" if std is None else f"{mean:.3f} ± {std:.3f}"


def format_map(facts: Facts) -> list[Section]:
    """Return the labels of a map with their numbers, and how often neighbours agree."""
    from pretune.analysis.pictures import group_points

    names = {"pca": "PCA", "tsne": "t-SNE"}
    title = f"map of {format_count(facts['texts'], 'texts')} by {names[facts['method']]}"
    rows = [("axes", "; ".join(facts["axes"]))]
    if facts["neighbor_agreement"] is not None:
        rows.append(("nearest neighbor has the label", f"{facts['neighbor_agreement']:.3f} "
                     f"(by chance {facts['chance_agreement']:.3f})"))  # fmt: skip
    sections = [Section(title=title, rows=[]), Section(title="map", rows=rows)]
    if facts["neighbor_agreement"] is not None:
        groups = group_points(facts["points"])
        sections.append(
            Section(
                title="labels",
                rows=[
                    (label, str(len(points)), *(f"{sum(p[axis] for p in points) / len(points):.2f}" for axis in "xy"))
                    for label, points in groups.items()
                ],
                header=("", "texts", "mean x", "mean y"),
                align_right=True,
            )
        )
    return sections


def format_changes(facts: Facts) -> list[Section]:
    """Return the change of every layer and kind of weights as a table."""
    from pretune.analysis.pictures import list_kinds

    kinds = list_kinds(facts["layers"])
    rows = [
        (row["layer"], _format_distance(row), f"{row['cosine']:.5f}",
         *(_format_distance(row["kinds"].get(kind)) for kind in kinds))
        for row in facts["layers"]
    ]  # fmt: skip
    rows.append(("all", _format_distance(facts), f"{facts['cosine']:.5f}", *("" for _ in kinds)))
    header = ("", "distance", "cosine", *kinds)
    sections = [
        Section(title=f"weights moved by {_format_distance(facts)}", rows=[]),
        Section(title="relative change by layer and part", rows=rows, header=header, align_right=True),
    ]
    counts = [(name, f"{facts[name]:,} parameters") for name in ("added", "removed") if facts[name]]
    return sections + ([Section(title="only in one model", rows=counts)] if counts else [])


def _format_distance(change: Facts | None) -> str:
    if change is None:
        return ""
    return "new" if change["distance"] is None else f"{change['distance']:.3%}"


def format_forgetting(facts: Facts) -> list[Section]:
    """Return the losses before and after, and the change of the weights."""
    loss = facts["loss"]
    names = [name for name in loss["before"] if name in loss["after"]]
    rows = [(name, f"{loss['before'][name]:.4f}", f"{loss['after'][name]:.4f}",
             f"{loss['after'][name] - loss['before'][name]:+.4f}") for name in names]  # fmt: skip
    title = f"pre-training loss {loss['before']['loss']:.4f} before, {loss['after']['loss']:.4f} after"
    header = ("", "before", "after", "difference")
    return [
        Section(title=title, rows=[]),
        Section(title="validation", rows=rows, header=header, align_right=True),
        *format_changes(facts)[1:],
    ]
