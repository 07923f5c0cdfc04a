"""Data preparation: `pretune.data.prepare`, plus text-to-text tasks as corpora.

    pt.prepare(["books/", "task:sst2", "task:multi30k"], tokenizer=tok, out="data/tasks", data="data")

`task:NAME` is the training split of a task, `task:NAME:dev` another; the task's template turns each example into a
pair of source and target.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pretune.core import log
from pretune.core.api import StrPath, take_options
from pretune.core.config import to_dict
from pretune.core.errors import UsageError
from pretune.core.io import sha256
from pretune.data.prepare.run import Inputs
from pretune.data.prepare.run import prepare as work
from pretune.data.prepare.settings import PrepareConfig, parse_share
from pretune.data.prepared_data import PreparedData
from pretune.runs.options import PrepareOptions
from pretune.tasks import TASKS
from pretune.tasks.task import Task, load_task
from pretune.tasks.types import has_answer
from pretune.text.corpora.document import Document
from pretune.text.corpora.file_discovery import make_pair_document
from pretune.text.corpora.items import CorpusItem, Span, Stamp, WholeItem, stamp_file
from pretune.text.corpora.streams import Errors

TASK_PREFIX = "task:"
DEFAULT_HOLDOUT = "1%"


@take_options(PrepareOptions, required_names=["inputs", "out", "tokenizer"])
def prepare(options: PrepareOptions) -> PreparedData:
    """Convert text to memory-mapped token shards with the splits `train` and `valid`, and write a data card.

    Exact duplicates are always dropped. If `out` already contains the same data, nothing is written.

    Args:
        inputs: Training text: files, folders, globs, built-in names, and tasks (`task:NAME`).
        out: Output directory.
        tokenizer: A tokenizer, or the path of one.
        valid: Validation text; None holds out training documents instead.
        holdout: Share of the documents to hold out for validation, selected by a hash of their content.
        by: Unit of a document.
        field: Text field of tables.
        errors: Treatment of invalid UTF-8.
        clean: Names of cleaning filters.
        quality: Good text, the reference of a quality filter (`pretune.text.quality`); None keeps all text.
        keep: Share of the documents that the quality filter keeps; None for the published threshold.
        near: Similarity (0 to 1) from which near duplicates are dropped; None keeps them.
        data: Directory of the tasks in `inputs` and `valid`, by default $PRETUNE_DATA.
        lang: Language code for the sentence splitter; "auto" detects the language.
        sentences: Name of the sentence splitter.
        licence: Licences for the card: a text for all sources, or "PATTERN=TEXT" for matching ones.
        workers: Number of processes, 0 to work in this process; None for one per CPU. The output does not depend on it.
        shard: "i/n" prepares only slice i of n, for `merge`.
        overwrite: Replace other prepared data in `out`.
        progress: Callback with the completed share, the characters read and the tokens written.

    Raises:
        UsageError: An argument is invalid, or `out` contains files that are not prepared data.
        DataError: The text cannot be read, no text remains, or `out` contains other data and `overwrite` is False.
        CheckpointError: The tokenizer cannot be loaded.
        ResourceError: A worker process died, or the disk is full.
    """
    return run_prepare(options)


def run_prepare(options: PrepareOptions) -> PreparedData:
    """Tokenize text into shards; tasks are replaced by their examples."""
    inputs: Inputs = _open_tasks(options.inputs, options.data)
    valid = _open_tasks(options.valid, options.data) if options.valid else None
    quality = _open_tasks(options.quality, options.data) if options.quality else None
    if options.keep is not None and not quality:
        raise UsageError("keep is the share that a quality filter keeps: pass good text with --quality, too")
    if options.tokenizer is None:
        raise UsageError("missing option '--tokenizer'; train one with `pretune tokenizer`")
    clean, licence = options.clean, options.licence
    settings = PrepareConfig(
        by=options.by,
        field=options.field,
        errors=options.errors,
        clean=tuple([clean] if isinstance(clean, str) else clean),
        near=options.near,
        holdout=_parse_holdout(options.holdout, valid),
        lang=options.lang,
        sentences=options.sentences,
        licence=tuple([licence] if isinstance(licence, str) else licence),
        keep=None if options.keep is None else _parse_keep(options.keep),
    )
    return work(
        inputs,
        settings,
        tokenizer=options.tokenizer,
        out=options.out,
        valid=valid,
        quality=quality,
        workers=options.workers,
        shard=options.shard,
        overwrite=options.overwrite,
        progress=options.progress,
    )


def _parse_holdout(holdout: str | float, valid: Inputs | None) -> float:
    if valid is None:
        return parse_share(holdout)
    if holdout != DEFAULT_HOLDOUT:
        raise UsageError("holdout and valid are mutually exclusive: with valid, no training documents are held out")
    return 0.0


def _parse_keep(keep: str | float) -> float:
    share = parse_share(keep, "keep")
    if not share:
        raise UsageError(f"keep must be above 0 %, since no text would remain, got '{str(keep)[:40]}'")
    return share


def _open_tasks(names: Sequence[StrPath], data: StrPath | None) -> Inputs:
    if isinstance(names, str):
        return names  # refused where inputs are opened
    return [_build_task_pairs(name, data) if _is_task(name) else name for name in names]


@dataclass(frozen=True, slots=True)
class TaskPairs(WholeItem):
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
        names = ", ".join(other for other in TASKS if TASKS.get(other).template is not None)
        raise UsageError(f"task '{task_name}' has no text-to-text template; tasks with one: {names}")
    item = TaskPairs(os.fspath(name), task, split or "train", None if data is None else os.fspath(data))
    if item.split not in ("train", "dev", "test"):
        task.find(item.split, data)  # raises and lists the splits
    for note in load_task(task, data).notes:
        log.info(f"{name}: {note}")
    return item
