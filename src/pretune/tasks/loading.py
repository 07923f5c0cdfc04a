"""A task's examples for a run: train, dev and test, and what was done to get them.

parts = load(TASKS.get("qnli"), "data/tasks", seed=0)
parts.train, parts.dev, parts.test, parts.notes
# notes: ("no train split is there: 'dev' (5463 examples) was divided 80/10/10, stratified, seed 0",)
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pretune.core.counted import counted
from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.splits import divide, subset
from pretune.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is trained on, what choices are made on, and what the headline is measured on (dev where it is empty)."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]
    notes: tuple[str, ...] = field(default=())
    pool: Mapping[str, int] = field(default_factory=dict)  # examples of each split before a limit drew from them


def load(task: Task, data: str | os.PathLike[str] | None = None, seed: int = 0, labels: int | None = None) -> Parts:
    """The examples of a task; what has no dev, or no train split, is divided, and a note says so.

    `labels` keeps that many training examples, stratified and nested: the 50 are among the 200.
    """
    there = task.available(data)
    if not there:
        task.find(next(iter(task.splits)), data)  # its error says where was looked
    notes = [f"'{name}' is a part of the published split" for name, found in there.items() if found.file.partial]
    train, dev, test = (list(there[name].read()) if name in there else [] for name in ("train", "dev", "test"))
    if not train:
        name = next((name for name in ("dev", "all", "test") if name in there), next(iter(there)))
        whole = dev or test or list(there[name].read())
        shares: tuple[float, ...] = (0.9, 0.1) if name == "dev" and test else (0.8, 0.1, 0.1)
        train, dev, *rest = divide(whole, shares, seed, task.together)
        test = rest[0] if rest else test
        notes.append(_divided("train", name, len(whole), shares, seed))
    elif not dev:
        size = len(train)
        train, dev = divide(train, (0.9, 0.1), seed, task.together)
        notes.append(_divided("dev", "train", size, (0.9, 0.1), seed))
    if labels is not None:
        if labels > len(train):
            raise DataError(f"task '{task.name}': {labels} labels were asked for, train has {len(train)}")
        drawn = subset(train, labels, seed, task.groups(train))
        notes.append(f"{len(drawn)} of {len(train)} training examples, stratified, seed {seed}")
        train = drawn
    return Parts(train=train, dev=dev, test=test, notes=tuple(notes))


def _divided(missing: str, name: str, size: int, shares: Sequence[float], seed: int) -> str:
    percent = "/".join(f"{share:.0%}".removesuffix("%") for share in shares)
    return (
        f"no {missing} split is there: '{name}' ({counted(size, 'examples')}) "
        f"was divided {percent}, stratified, seed {seed}"
    )
