"""Output of analyses: tables on the terminal, JSON and pictures in files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.cli._output import Section, check_new_file, check_new_folder, find_free_path, hint, print_page
from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.hub import is_hub
from pretune.core.io import atomic_write
from pretune.core.log import format_count
from pretune.core.run_dir import RunDir

if TYPE_CHECKING:
    from pretune.core.api import Result

SUFFIXES = (".svg", ".png", ".json")
MAX_LISTED = 3
"""Tokens listed for each token of a text."""
MIN_LISTED_WEIGHT = 0.05
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
    if out is None:
        hint("analyze", *command, "--out", suggest_out(name, run))
    elif run is not None and out.resolve() == RunDir(Path(run)).analysis.resolve():
        hint("report", run)
    else:
        hint("analyze", "--help")


def suggest_out(name: str, run: str | None) -> Path:
    """Return the directory of analyses in a run, or data in it if it exists; outside of a run, a picture."""
    if run is None or is_hub(run) or not RunDir(Path(run)).settings.is_file():
        return find_free_path(f"{name}.svg")
    folder = RunDir(Path(run)).analysis
    return find_free_path(folder / f"{name}.json") if folder.exists() else folder


def write_files(result: Any, facts: Facts, name: str, out: Path | None) -> list[Path]:
    """Write the picture or the data to a file, or both to a directory; return the paths."""
    if out is None:
        return []
    if out.suffix in SUFFIXES:
        return [_write(result, facts, out)]
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
