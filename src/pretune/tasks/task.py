"""A task: its files, their reader, its labels and metrics.

    task = TASKS.get("cola")
    task.labels, task.metrics                      # ('unacceptable', 'acceptable'), ('matthews',)
    for example in task.read("dev", "data/tasks"):
        example.text, example.label

A split has one or more files, best first: the published one, then alternatives (a subset, another format of the same
data). A file may be compressed.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError, suggest
from pretune.metrics import GROUP_METRICS
from pretune.tasks.example import Example

Reader = Callable[[Path], Iterator[Example]]
"""Function that reads the examples of one file."""

_SUFFIXES = ("", ".gz", ".xz", ".bz2", ".zst")


@spec
class Template:
    """Text-to-text template in the wording of Raffel et al. (2020), "T5", appendix D.

    >>> cola = Template(source="cola sentence: {text}", targets=("unacceptable", "acceptable"))
    >>> cola.fill(Example(text="The sailors rode.", label=1))
    ('cola sentence: The sailors rode.', 'acceptable')

    The target is one of `targets` by label, else the filled `target`. A source may use {text}, {pair}, {choice1},
    {choice2}, … and the example's `facts` by name; a target {target}, {answer} (the first one, or "" without answers),
    {score} (rounded to 0.2, as for STS-B) and the facts.
    """

    source: str
    targets: tuple[str, ...] = ()
    target: str = ""

    def fill(self, example: Example) -> tuple[str, str | None]:
        """Return (source, target) of an example; the target is None if its label is unknown."""
        values = _collect_values(example)
        source = _fill(self.source, values)
        if self.targets:
            return source, None if example.label is None else self.targets[int(example.label)]
        return source, _fill(self.target, values)

    def parse_label(self, text: str, spellings: tuple[str, ...] = ()) -> int | None:
        """Return the label of a generated text; None if it is no label, which always counts as wrong.

        `spellings` are the targets as a tokenizer decodes them, if that changes them ("Good" as "good").
        """
        targets = spellings or self.targets
        return targets.index(text.strip()) if text.strip() in targets else None


@dataclass(frozen=True, slots=True)
class SplitFile:
    """One file (or format) of a split in a task's folder; `*` in a path matches several files."""

    path: str
    reader: Reader
    rows: int | None = None  # number of examples, if known
    is_partial: bool = False  # a part of the published split: scores are not comparable to leaderboards


@dataclass(frozen=True, slots=True)
class AvailableSplit:
    """A split whose files exist."""

    file: SplitFile
    paths: tuple[Path, ...]

    def read(self) -> Iterator[Example]:
        """Yield the examples in the order of the files."""
        for path in self.paths:
            yield from self.file.reader(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task for fine-tuning and evaluation; `kind` names its type in `TASK_TYPES`.

    A split has one or more files, best first. The first of `metrics` is the official one. Labels are in the published
    order: label 1 is `labels[1]`. Examples with the same value of `group_field` stay together when a split is divided.
    """

    name: str
    kind: str
    metrics: tuple[str, ...]
    splits: Mapping[str, tuple[SplitFile, ...]]
    folders: tuple[str, ...] = ()  # its folders below the data directory; default: its name
    labels: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None  # lowest and highest score of a regression
    template: Template | None = None
    group_field: Literal["text", "pair", "group"] | None = None
    notes: tuple[str, ...] = ()  # on a user's files

    def read(self, split: str, data: str | os.PathLike[str] | None = None) -> Iterator[Example]:
        """Return the examples of a split; the file is located at once and read lazily."""
        return self.find(split, data).read()

    def find(self, split: str, data: str | os.PathLike[str] | None = None) -> AvailableSplit:
        """Locate a split below `data`, or $PRETUNE_DATA if `data` has no split of the task; DataError if missing."""
        if split not in self.splits:
            raise UsageError(
                f"task '{self.name}' has no split '{split}'{suggest(split, self.splits)} "
                f"(available: {', '.join(self.splits)})"
            )
        is_own = all(Path(file.path).is_absolute() for file in self.splits[split])  # the user's own files
        homes = [Path()] if is_own else self._find_homes(data)
        for home in homes:
            for file in self.splits[split]:
                if paths := _find_files(home, file.path):
                    return AvailableSplit(file, paths)
        file_names = " or ".join(file.path for file in self.splits[split])
        remedy = "pass the data directory with --data, or set PRETUNE_DATA"
        if not homes:
            raise DataError(f"task '{self.name}': no data directory for its files ({file_names}); {remedy}")
        places = ", ".join(map(str, homes))
        raise DataError(
            f"task '{self.name}': no file for split '{split}' ({file_names}, also compressed) in {places}; {remedy}"
        )

    def _find_homes(self, data: str | os.PathLike[str] | None) -> list[Path]:
        """Return the folders of the first data directory that has any split, so that splits of two are never mixed."""
        homes: list[Path] = []
        files = [file for split_files in self.splits.values() for file in split_files]
        for root in [Path(root) for root in (data, os.environ.get("PRETUNE_DATA")) if root]:
            places = [place / folder for place in (root, root / "tasks") for folder in self.folders or (self.name,)]
            if any(_find_files(place, file.path) for place in places for file in files):
                return places
            homes += places
        return homes

    def get_groups(self, examples: Sequence[Example]) -> list[str | None] | None:
        """Return the group of each example if a metric scores groups (a question with all its answers), else None."""
        return [example.group for example in examples] if GROUP_METRICS.intersection(self.metrics) else None

    def find_available(self, data: str | os.PathLike[str] | None = None) -> dict[str, AvailableSplit]:
        """Return the splits whose files exist."""
        available: dict[str, AvailableSplit] = {}
        for split in self.splits:
            try:
                available[split] = self.find(split, data)
            except DataError:
                continue
        return available


def _find_files(home: Path, path: str) -> tuple[Path, ...]:
    """Return the files that match a path, sorted by name."""
    if "*" not in path or Path(path).is_absolute():
        fits = (home / (path + ending) for ending in _SUFFIXES)
        return tuple([place for place in fits if place.exists()][:1])
    stems: dict[str, Path] = {}
    for ending in _SUFFIXES:
        for place in home.glob(path + ending):
            stems.setdefault(str(place).removesuffix(ending), place)
    return tuple(place for _, place in sorted(stems.items()))


def _fill(text: str, values: Mapping[str, str]) -> str:
    try:
        return text.format_map(values)
    except KeyError as missing:
        available = ", ".join(name for name, value in values.items() if value) or "none"
        raise DataError(f"template '{text[:80]}': unknown field {missing}; this example has {available}") from None


def _collect_values(example: Example) -> Mapping[str, str]:
    values = {"text": example.text, "pair": example.pair or "", "target": example.target or ""}
    values |= {f"choice{number}": choice for number, choice in enumerate(example.choices, start=1)}
    values["answer"] = example.answers[0] if example.answers else ""
    if isinstance(example.label, float):
        values["score"] = f"{round(example.label * 5) / 5:.1f}"
    return values | dict(example.facts)
