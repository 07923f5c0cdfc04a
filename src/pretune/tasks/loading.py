"""A task's examples for a run: train, dev and test, and what was done to get them.

parts = load(TASKS.get("qnli"), "data/tasks", seed=0)
parts.train, parts.dev, parts.test, parts.notes
# notes: ("no train split is there: 'dev' (5463 examples) was divided 80/10/10, stratified, seed 0",)
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
    """What is trained on, what choices are made on, and what the headline is measured on (dev where it is empty)."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]
    notes: tuple[str, ...] = field(default=())
    split_sizes: Mapping[str, int] = field(default_factory=dict)  # examples of each split before a limit drew from them


def load_task(
    task: Task, data: str | os.PathLike[str] | None = None, seed: int = 0, train_examples: int | None = None
) -> TaskSplits:
    """The examples of a task; what has no dev, or no train split, is divided, and a note says so.

    `labels` keeps that many training examples, stratified and nested: the 50 are among the 200.
    """
    there = task.find_available(data)
    if not there:
        task.find(next(iter(task.splits)), data)  # its error says where was looked
    notes = [f"'{name}' is a part of the published split" for name, found in there.items() if found.file.is_partial]
    train, dev, test = (list(there[name].read()) if name in there else [] for name in ("train", "dev", "test"))
    if not train:
        name = next((name for name in ("dev", "all", "test") if name in there), next(iter(there)))
        whole = dev or test or list(there[name].read())
        shares: tuple[float, ...] = (0.9, 0.1) if name == "dev" and test else (0.8, 0.1, 0.1)
        train, dev, *rest = divide(whole, shares, seed, task.group_field)
        test = rest[0] if rest else test
        notes.append(_format_split_note("train", name, len(whole), shares, seed))
    elif not dev:
        size = len(train)
        train, dev = divide(train, (0.9, 0.1), seed, task.group_field)
        notes.append(_format_split_note("dev", "train", size, (0.9, 0.1), seed))
    if train_examples is not None:
        if train_examples > len(train):
            raise DataError(f"task '{task.name}': {train_examples} labels were asked for, train has {len(train)}")
        drawn = sample_subset(train, train_examples, seed, task.get_groups(train))
        notes.append(f"{len(drawn)} of {len(train)} training examples, stratified, seed {seed}")
        train = drawn
    return TaskSplits(train=train, dev=dev, test=test, notes=tuple(notes))


def _format_split_note(missing_split: str, name: str, size: int, shares: Sequence[float], seed: int) -> str:
    percent = "/".join(f"{share:.0%}".removesuffix("%") for share in shares)
    return (
        f"no {missing_split} split is there: '{name}' ({format_count(size, 'examples')}) "
        f"was divided {percent}, stratified, seed {seed}"
    )
