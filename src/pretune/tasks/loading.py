"""Examples of a task for a run: train, dev and test, and notes on how they were split.

parts = load_task(TASKS.get("qnli"), "data/tasks", seed=0)
parts.train, parts.dev, parts.test, parts.notes
# notes: ("no train split: split 'dev' (5463 examples) 80/10/10, stratified, seed 0",)
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pretune.core.errors import DataError
from pretune.core.format import format_count
from pretune.tasks.example import Example
from pretune.tasks.splits import divide, sample_subset
from pretune.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSplits:
    """Examples for training, for model selection, and for the reported score (dev if `test` is empty)."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]
    notes: tuple[str, ...] = field(default=())
    split_sizes: Mapping[str, int] = field(default_factory=dict)  # examples of each split before limits were applied


def load_task(
    task: Task, data: str | os.PathLike[str] | None = None, seed: int = 0, train_examples: int | None = None
) -> TaskSplits:
    """Load the examples of a task; without a dev or train split another one is split, with a note.

    `train_examples` limits the training examples, stratified and nested: the 50 are a subset of the 200.
    """
    available = task.find_available(data)
    if not available:
        task.find(next(iter(task.splits)), data)  # raises an error that lists the searched directories
    notes = [f"'{name}' is a part of the published split" for name, split in available.items() if split.file.is_partial]
    train, dev, test = (list(available[name].read()) if name in available else [] for name in ("train", "dev", "test"))
    if not train:
        name = next((name for name in ("dev", "all", "test") if name in available), next(iter(available)))
        examples = dev or test or list(available[name].read())
        shares: tuple[float, ...] = (0.9, 0.1) if name == "dev" and test else (0.8, 0.1, 0.1)
        train, dev, *rest = divide(examples, shares, seed, task.group_field)
        test = rest[0] if rest else test
        notes.append(_format_split_note("train", name, len(examples), shares, seed))
    elif not dev:
        size = len(train)
        train, dev = divide(train, (0.9, 0.1), seed, task.group_field)
        notes.append(_format_split_note("dev", "train", size, (0.9, 0.1), seed))
    if train_examples is not None:
        if train_examples > len(train):
            raise DataError(f"task '{task.name}': train_examples must be <= {len(train)}, got {train_examples}")
        subset = sample_subset(train, train_examples, seed, task.get_groups(train))
        notes.append(f"{len(subset)} of {len(train)} training examples, stratified, seed {seed}")
        train = subset
    return TaskSplits(train=train, dev=dev, test=test, notes=tuple(notes))


def _format_split_note(missing_split: str, name: str, size: int, shares: Sequence[float], seed: int) -> str:
    percent = "/".join(f"{share:.0%}".removesuffix("%") for share in shares)
    source = f"'{name}' ({format_count(size, 'examples')})"
    return f"no {missing_split} split: split {source} {percent}, stratified, seed {seed}"
