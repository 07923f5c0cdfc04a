"""A task: where its files are, how they are read, what its labels are called, and how it is scored.

    task = TASKS.get("cola")
    task.labels, task.metrics                      # ('unacceptable', 'acceptable'), ('matthews',)
    for example in task.read("dev", "data/tasks"):
        example.text, example.label

A split has the name by which the paper calls it, and one file or several under which it may be found: the published one
first, then others (a subset, another form of the same data). A file may be compressed.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pretune.core.errors import DataError, UsageError, suggest
from pretune.metrics.groups import GROUP_METRICS
from pretune.tasks.example import Example
from pretune.tasks.template import Template

Kind = Literal[
    "classification",
    "pair",
    "regression",
    "tagging",
    "span",
    "choice",
    "generation",
    "pairs",
    "cloze",
    "retrieval",
]
"""What is asked of a model; `example` says which fields each kind fills. The last three are for evaluation only."""

Type = Literal["classification", "regression", "tagging", "span", "choice", "text", "embedding"]
"""The type of a task as users state it (`pretune finetune --type`); a type may cover several kinds."""
TYPES: tuple[Type, ...] = get_args(Type)


def get_task_type(kind: Kind) -> Type | None:
    """The type that users state for a kind; None for a kind that is for evaluation only.

    >>> get_task_type("pair"), get_task_type("generation"), get_task_type("cloze")
    ('classification', 'text', None)
    """
    types: dict[str, Type] = {**{name: name for name in TYPES}, "pair": "classification", "generation": "text"}
    return types.get(kind)


Reader = Callable[[Path], Iterator[Example]]
"""How one file is read."""

_SUFFIXES = ("", ".gz", ".xz", ".bz2", ".zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFile:
    """One form in which a split may lie in a task's folder; `*` in a path stands for all files that fit."""

    path: str
    reader: Reader
    rows: int | None = None  # how many examples it has, where that is known
    is_partial: bool = False  # only a part of the published split: scores are not those of the leaderboards


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSplit:
    """One split: its published name, and where it may be found, the best first."""

    published_name: str
    files: tuple[SplitFile, ...]


@dataclass(frozen=True, slots=True)
class AvailableSplit:
    """A split that is there: its form and its files."""

    file: SplitFile
    paths: tuple[Path, ...]

    def read(self) -> Iterator[Example]:
        """The examples, in the order of the files."""
        for path in self.paths:
            yield from self.file.reader(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a model is adapted to and judged by.

    The first of `metrics` is the official one. Labels stand in the published order: a label of 1 is `labels[1]`.
    `group_field` names the field whose equal values must not be parted when one split is divided in two.
    """

    name: str
    kind: Kind
    metrics: tuple[str, ...]
    splits: Mapping[str, TaskSplit]
    folders: tuple[str, ...] = ()  # where it lies below the data directory; its name by default
    labels: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None  # the lowest and highest score, of a regression
    template: Template | None = None
    group_field: Literal["text", "pair", "group"] | None = None

    def read(self, split: str, data: str | os.PathLike[str] | None = None) -> Iterator[Example]:
        """The examples of a split; the file is looked for at once, and read as you go."""
        return self.find(split, data).read()

    def find(self, split: str, data: str | os.PathLike[str] | None = None) -> AvailableSplit:
        """Where a split lies: below `data`, then $PRETUNE_DATA."""
        if split not in self.splits:
            raise UsageError(
                f"task '{self.name}' has no split '{split}'{suggest(split, self.splits)} "
                f"(it has {', '.join(self.splits)})"
            )
        homes = [root / folder for root in find_roots(data) for folder in self.folders or (self.name,)]
        if all(Path(file.path).is_absolute() for file in self.splits[split].files):  # files of the user's own
            homes = [Path()]
        for home in homes:
            for file in self.splits[split].files:
                if paths := _find_files(home, file.path):
                    return AvailableSplit(file, paths)
        wanted = " or ".join(file.path for file in self.splits[split].files)
        remedy = "give the directory of tasks with --data, or set PRETUNE_DATA"
        if not homes:
            raise DataError(f"task '{self.name}': where its files are ({wanted}) is not known; {remedy}")
        places = ", ".join(map(str, homes))
        raise DataError(f"task '{self.name}': no file for '{split}' ({wanted}, also compressed) in {places}; {remedy}")

    def get_groups(self, examples: Sequence[Example]) -> list[str | None] | None:
        """The group of each example, where a metric scores whole groups (a question with all its answers)."""
        return [example.group for example in examples] if {*self.metrics} & {*GROUP_METRICS} else None

    def find_available(self, data: str | os.PathLike[str] | None = None) -> dict[str, AvailableSplit]:
        """The splits that are there."""
        found: dict[str, AvailableSplit] = {}
        for split in self.splits:
            try:
                found[split] = self.find(split, data)
            except DataError:
                continue
        return found


def find_roots(data: str | os.PathLike[str] | None) -> list[Path]:
    """Where tasks are looked for: each directory given, and `tasks` inside it."""
    given = [data, os.environ.get("PRETUNE_DATA")]
    return [place for root in given if root for place in (Path(root), Path(root) / "tasks")]


def _find_files(home: Path, path: str) -> tuple[Path, ...]:
    """The files that a path stands for, in the order of their names; none when there are none."""
    if "*" not in path or Path(path).is_absolute():
        fits = (home / (path + ending) for ending in _SUFFIXES)
        return tuple([place for place in fits if place.exists()][:1])
    stems: dict[str, Path] = {}
    for ending in _SUFFIXES:
        for place in home.glob(path + ending):
            stems.setdefault(str(place).removesuffix(ending), place)
    return tuple(place for _, place in sorted(stems.items()))
