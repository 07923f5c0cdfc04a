"""Preparing data: what `pretune.data.prepare` does, and tasks as text to text among the corpora.

    pt.prepare(["books/", "task:sst2", "task:multi30k"], tokenizer=tok, out="data/tasks", data="data")

`task:NAME` is the training split of a task, `task:NAME:dev` another, each example written as a pair by the task's
template: what is read, and what is to be said of it.
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
from pretune.data.prepare import PreparedData
from pretune.data.prepare import prepare as work
from pretune.tasks import TASKS
from pretune.tasks.loading import load_task
from pretune.tasks.task import Task
from pretune.text.corpora.decoding import Errors
from pretune.text.corpora.document import Document
from pretune.text.corpora.items import FULL_SPAN, CorpusItem, Span
from pretune.text.corpora.pairs import make_pair_document
from pretune.text.corpora.snapshot import Stamp, stamp_file

TASK_PREFIX = "task:"
StrPath = str | os.PathLike[str]


def prepare(
    inputs: Sequence[StrPath], *, data: StrPath | None = None, valid: Sequence[StrPath] | None = None, **options: Any
) -> PreparedData:
    """Turn text into memory-mapped token shards; the options are those of `pretune.data.prepare.prepare`.

    Tasks among the inputs, and in `valid`, are looked for below `data`, then $PRETUNE_DATA.
    """
    if isinstance(inputs, str) or not any(_is_task(name) for name in (*inputs, *(valid or ()))):
        return work(inputs, valid=valid, **options)
    found = [
        [_build_task_pairs(name, data) if _is_task(name) else name for name in names] for names in (inputs, valid or ())
    ]
    return work(found[0], valid=found[1] or None, **options)


@dataclass(frozen=True, slots=True)
class TaskPairs:
    """A split of a task as pairs: source and target by its template."""

    name: str  # as it was typed
    task: Task
    split: str
    data: str | None

    @property
    def bytes(self) -> int:
        return sum(
            path.stat().st_size for found in self.task.find_available(self.data).values() for path in found.paths
        )

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        """Examples in their order; those without a label are left out, and counted."""
        template, parts = self.task.template, load_task(self.task, self.data)
        assert template is not None
        divided = {"train": parts.train, "dev": parts.dev, "test": parts.test}
        examples = divided[self.split] if divided.get(self.split) else self.task.read(self.split, self.data)
        for number, example in enumerate(examples, 1):
            target = None
            if example.label is not None or self.task.kind not in LABELLED_KINDS:
                text, target = template.fill(example)
            if target is None:
                counts["unlabelled_examples"] += 1
            else:
                yield from make_pair_document(text, target, source, f"{self.name}:{number}", counts)

    def plan_spans(self, n_bytes: int) -> list[Span]:
        return [FULL_SPAN]

    def compute_identity(self) -> list[object]:
        """The template, and the content of all splits, for one may be divided to make up for another."""
        files = [
            [split, [[path.name, sha256(path)] for path in found.paths]]
            for split, found in self.task.find_available(self.data).items()
        ]
        return [self.name, self.split, to_dict(self.task.template), files]

    def list_stamps(self) -> list[Stamp]:
        return [stamp_file(path) for found in self.task.find_available(self.data).values() for path in found.paths]


LABELLED_KINDS = ("classification", "pair", "regression", "choice")
"""Kinds of tasks whose examples may lack their label."""


def _is_task(name: StrPath) -> bool:
    return isinstance(name, str) and name.startswith(TASK_PREFIX)


def _build_task_pairs(name: StrPath, data: StrPath | None) -> CorpusItem:
    called, _, split = os.fspath(name).removeprefix(TASK_PREFIX).partition(":")
    task = TASKS.get(called)
    if task.template is None:
        known = ", ".join(one for one in TASKS if TASKS.get(one).template is not None)
        raise UsageError(f"task '{called}' has no template, so it is no text to text; tasks that have one: {known}")
    item = TaskPairs(os.fspath(name), task, split or "train", None if data is None else os.fspath(data))
    if item.split not in ("train", "dev", "test"):
        task.find(item.split, data)  # its error says what there is
    for note in load_task(task, data).notes:
        log.info(f"{name}: {note}")
    return item
