"""Data preparation: `pretune.data.prepare`, plus text-to-text tasks as corpora.

    pt.prepare(["books/", "task:sst2", "task:multi30k"], tokenizer=tok, out="data/tasks", data="data")

`task:NAME` is the training split of a task, `task:NAME:dev` another; the task's template turns each example into a
pair of source and target.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pretune.core import log
from pretune.core.config import to_dict
from pretune.core.errors import UsageError
from pretune.core.io import sha256
from pretune.data.prepare.run import prepare as work
from pretune.data.prepared_data import PreparedData
from pretune.tasks import TASKS
from pretune.tasks.splits import load_task
from pretune.tasks.task import Task
from pretune.tasks.types import has_answer
from pretune.text.corpora.document import Document
from pretune.text.corpora.items import FULL_SPAN, CorpusItem, Span, Stamp, stamp_file
from pretune.text.corpora.pairs import make_pair_document
from pretune.text.corpora.streams import Errors

TASK_PREFIX = "task:"
StrPath = str | os.PathLike[str]


def prepare(
    inputs: Sequence[StrPath], *, data: StrPath | None = None, valid: Sequence[StrPath] | None = None, **options: Any
) -> PreparedData:
    """Tokenize text into memory-mapped shards; options are those of `pretune.data.prepare.prepare`.

    Tasks in `inputs` and `valid` are read from `data`, by default $PRETUNE_DATA.
    """
    if isinstance(inputs, str) or not any(_is_task(name) for name in (*inputs, *(valid or ()))):
        return work(inputs, valid=valid, **options)
    items = [
        [_build_task_pairs(name, data) if _is_task(name) else name for name in names] for names in (inputs, valid or ())
    ]
    return work(items[0], valid=items[1] or None, **options)


@dataclass(frozen=True, slots=True)
class TaskPairs:
    """Split of a task as pairs of source and target, by its template."""

    name: str  # as passed
    task: Task
    split: str
    data: str | None

    @property
    def bytes(self) -> int:
        return sum(
            path.stat().st_size for files in self.task.find_available(self.data).values() for path in files.paths
        )

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        """Yield examples in order; unlabelled ones are skipped and counted."""
        template, parts = self.task.template, load_task(self.task, self.data)
        assert template is not None
        splits = {"train": parts.train, "dev": parts.dev, "test": parts.test}
        examples = splits[self.split] if splits.get(self.split) else self.task.read(self.split, self.data)
        for number, example in enumerate(examples, 1):
            target = None
            if has_answer(self.task, example):
                text, target = template.fill(example)
            if target is None:
                counts["unlabelled_examples"] += 1
            else:
                yield from make_pair_document(text, target, source, f"{self.name}:{number}", counts)

    def plan_spans(self, n_bytes: int) -> list[Span]:
        return [FULL_SPAN]

    def compute_identity(self) -> list[object]:
        """Return the template and hashes of all splits, since one may be split off another."""
        files = [
            [split, [[path.name, sha256(path)] for path in split_files.paths]]
            for split, split_files in self.task.find_available(self.data).items()
        ]
        return [self.name, self.split, to_dict(self.task.template), files]

    def list_stamps(self) -> list[Stamp]:
        return [stamp_file(path) for files in self.task.find_available(self.data).values() for path in files.paths]


def _is_task(name: StrPath) -> bool:
    return isinstance(name, str) and name.startswith(TASK_PREFIX)


def _build_task_pairs(name: StrPath, data: StrPath | None) -> CorpusItem:
    task_name, _, split = os.fspath(name).removeprefix(TASK_PREFIX).partition(":")
    task = TASKS.get(task_name)
    if task.template is None:
        names = ", ".join(
            registered_name for registered_name in TASKS if TASKS.get(registered_name).template is not None
        )
        raise UsageError(f"task '{task_name}' has no text-to-text template; tasks with one: {names}")
    item = TaskPairs(os.fspath(name), task, split or "train", None if data is None else os.fspath(data))
    if item.split not in ("train", "dev", "test"):
        task.find(item.split, data)  # raises and lists the splits
    for note in load_task(task, data).notes:
        log.info(f"{name}: {note}")
    return item
