"""A task: its files, their reader, its labels and metrics.

    task = TASKS.get("cola")
    task.labels, task.metrics                      # ('unacceptable', 'acceptable'), ('matthews',)
    for example in task.read("dev", "data/tasks"):
        example.text, example.label

A split has its published name, and one or more files, best first: the published one, then alternatives (a subset,
another format of the same data). A file may be compressed.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pretune.core.errors import DataError, UsageError, suggest
from pretune.metrics.classification import GROUP_METRICS
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
"""Kind of a task; `example` lists the fields of each. The last three are for evaluation only."""

Type = Literal["classification", "regression", "tagging", "span", "choice", "text", "embedding"]
"""Type of a task on the command line (`pretune finetune --type`); a type may cover several kinds."""
TYPES: tuple[Type, ...] = get_args(Type)


def get_task_type(kind: Kind) -> Type | None:
    """Return the command-line type of a kind; None for a kind that is for evaluation only.

    >>> get_task_type("pair"), get_task_type("generation"), get_task_type("cloze")
    ('classification', 'text', None)
    """
    types: dict[str, Type] = {**{name: name for name in TYPES}, "pair": "classification", "generation": "text"}
    return types.get(kind)


Reader = Callable[[Path], Iterator[Example]]
"""Function that reads the examples of one file."""

_SUFFIXES = ("", ".gz", ".xz", ".bz2", ".zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFile:
    """One file (or format) of a split in a task's folder; `*` in a path matches several files."""

    path: str
    reader: Reader
    rows: int | None = None  # number of examples, if known
    is_partial: bool = False  # a part of the published split: scores are not comparable to leaderboards


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSplit:
    """A split: its published name, and its possible files, best first."""

    published_name: str
    files: tuple[SplitFile, ...]


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
    """A task for fine-tuning and evaluation.

    The first of `metrics` is the official one. Labels are in the published order: label 1 is `labels[1]`. Examples with
    the same value of `group_field` stay together when a split is divided.
    """

    name: str
    kind: Kind
    metrics: tuple[str, ...]
    splits: Mapping[str, TaskSplit]
    folders: tuple[str, ...] = ()  # its folders below the data directory; default: its name
    labels: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None  # lowest and highest score of a regression
    template: Template | None = None
    group_field: Literal["text", "pair", "group"] | None = None

    def read(self, split: str, data: str | os.PathLike[str] | None = None) -> Iterator[Example]:
        """Return the examples of a split; the file is located at once and read lazily."""
        return self.find(split, data).read()

    def find(self, split: str, data: str | os.PathLike[str] | None = None) -> AvailableSplit:
        """Locate a split below `data`, then $PRETUNE_DATA; raise DataError if it is missing."""
        if split not in self.splits:
            raise UsageError(
                f"task '{self.name}' has no split '{split}'{suggest(split, self.splits)} "
                f"(available: {', '.join(self.splits)})"
            )
        homes = [root / folder for root in find_roots(data) for folder in self.folders or (self.name,)]
        if all(Path(file.path).is_absolute() for file in self.splits[split].files):  # the user's own files
            homes = [Path()]
        for home in homes:
            for file in self.splits[split].files:
                if paths := _find_files(home, file.path):
                    return AvailableSplit(file, paths)
        file_names = " or ".join(file.path for file in self.splits[split].files)
        remedy = "pass the data directory with --data, or set PRETUNE_DATA"
        if not homes:
            raise DataError(f"task '{self.name}': no data directory for its files ({file_names}); {remedy}")
        places = ", ".join(map(str, homes))
        raise DataError(
            f"task '{self.name}': no file for split '{split}' ({file_names}, also compressed) in {places}; {remedy}"
        )

    def get_groups(self, examples: Sequence[Example]) -> list[str | None] | None:
        """Return the group of each example if a metric scores groups (a question with all its answers), else None."""
        return [example.group for example in examples] if {*self.metrics} & {*GROUP_METRICS} else None

    def find_available(self, data: str | os.PathLike[str] | None = None) -> dict[str, AvailableSplit]:
        """Return the splits whose files exist."""
        available: dict[str, AvailableSplit] = {}
        for split in self.splits:
            try:
                available[split] = self.find(split, data)
            except DataError:
                continue
        return available


def find_roots(data: str | os.PathLike[str] | None) -> list[Path]:
    """Return the directories to search: each data directory, and `tasks` inside it."""
    roots = [data, os.environ.get("PRETUNE_DATA")]
    return [place for root in roots if root for place in (Path(root), Path(root) / "tasks")]


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
