"""Embeddings: vectors of texts, trained on pairs, triplets, classes of pairs or scored pairs, of tasks and files.

read_dataset(task="snli")                  # premise, entailed text, contradicting text where there is one
read_dataset(task="snli", loss="classes")  # premise, hypothesis, class
read_dataset(train="pairs.tsv")            # columns anchor, positive, negative; or two texts and a score or label
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from pretune.adaptation.contrastive import LOSSES, ContrastiveLoss, Gold, PairClasses
from pretune.core.errors import DataError, ResourceError, UsageError, suggest
from pretune.core.log import format_count
from pretune.core.types import Batch, Targets
from pretune.data.layout import lay_out, next_fit
from pretune.data.plan import BatchShape
from pretune.data.sequences import Ints, Sequences
from pretune.inference.embed import EncodedTexts, encode_texts
from pretune.tasks import TASKS
from pretune.tasks.encoding import deduplicate
from pretune.tasks.table import BlankRows, TableRow, data_error, find_column, open_table
from pretune.tasks.table_reader import read_label
from pretune.tasks.task import Task
from pretune.tasks.types import get_type
from pretune.tasks.types.base import TaskType
from pretune.text.tokenizer import Tokenizer

DEFAULT_LOSSES: Mapping[Gold, str] = {"score": "cosine", "class": "classes", "nothing": "in_batch"}
"""Default loss by the gold values of examples."""
ENTAILMENT, CONTRADICTION = "entailment", "contradiction"
MIN_ROW_LENGTH = 128
"""Minimum row length in tokens; longer texts lengthen the rows."""


EMBEDDING = TaskType(name="embedding")
"""Vectors of texts, near for texts of similar meaning; `runs.embedding` trains them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDataset:
    """Examples with the same number of texts, and a gold value each: a class, a score from 0 to 1, or 0 for none."""

    texts: list[tuple[str, ...]]
    gold: list[float]
    classes: tuple[str, ...] = ()
    is_scored: bool = False

    @property
    def columns(self) -> int:
        """Number of texts per example."""
        return len(self.texts[0])


def read_dataset(
    *,
    task: str | None = None,
    train: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    split: str = "train",
    loss: str | None = None,
    strict: bool = False,
) -> PairDataset:
    """Read the examples of a task's split or of a file; NLI gives entailed pairs unless the loss is `classes`."""
    if loss is not None and loss not in LOSSES:
        raise UsageError(f"unknown loss '{loss}'{suggest(loss, LOSSES)} ({', '.join(LOSSES)})")
    if (task is None) == (train is None):
        raise UsageError("pass either a task (embedding:NAME) or a file (--train FILE) to train on")
    dataset = (
        _read_file(Path(train), strict=strict) if train is not None else _read_task(TASKS.get(task or ""), data, split)
    )
    if dataset.classes and loss != "classes":
        if {ENTAILMENT, CONTRADICTION} <= {*dataset.classes}:
            return build_entailment_pairs(dataset)
        if loss is not None:
            raise UsageError(f"the loss '{loss}' needs positive pairs, got pairs with the classes {dataset.classes}")
    return dataset


def select_loss(dataset: PairDataset, loss: str | None) -> ContrastiveLoss:
    """Return the loss of this name, or the default; raises if the examples do not fit it."""
    has: Gold = "score" if dataset.is_scored else "class" if dataset.classes else "nothing"
    loss = loss or DEFAULT_LOSSES[has]
    loss_class = LOSSES[loss]
    if loss_class.gold not in ("nothing", has) or (has == "score" and loss_class.gold == "nothing"):
        raise UsageError(f"the loss '{loss}' needs examples with {loss_class.gold}, got {has}")
    if dataset.columns not in loss_class.columns:
        raise UsageError(f"the loss '{loss}' needs {loss_class.columns} texts per example, got {dataset.columns}")
    return PairClasses(classes=len(dataset.classes)) if loss_class is PairClasses else loss_class()


def build_entailment_pairs(dataset: PairDataset) -> PairDataset:
    """Return NLI as positive pairs, with a contradiction of the same premise as hard negative (Gao et al., 2021).

    Returns pairs alone where at most half of them have a contradiction.
    """
    yes, no = (float(dataset.classes.index(name)) for name in (ENTAILMENT, CONTRADICTION))
    against: dict[str, str] = {}
    for (premise, hypothesis), label in zip(dataset.texts, dataset.gold, strict=True):
        if label == no:
            against.setdefault(premise, hypothesis)
    pairs = [texts for texts, label in zip(dataset.texts, dataset.gold, strict=True) if label == yes]
    triplets = [(premise, hypothesis, against[premise]) for premise, hypothesis in pairs if premise in against]
    selection: list[tuple[str, ...]] = list(triplets if 2 * len(triplets) > len(pairs) else pairs)
    if not selection:
        raise DataError("no entailed pair; contrastive training needs positive pairs")
    return PairDataset(texts=selection, gold=[0.0] * len(selection))


def _read_task(task: Task, data: str | os.PathLike[str] | None, split: str) -> PairDataset:
    examples = list(task.find(split, data).read())
    gold_type = get_type(task).scoring.gold
    is_scored = gold_type == "score"
    if gold_type not in ("class", "score") or not all(example.pair for example in examples):
        raise UsageError(f"task '{task.name}' has the kind '{task.kind}'; embeddings train on pairs of texts")
    low, high = (task.scale or (0.0, 1.0)) if is_scored else (0.0, 1.0)
    texts, gold = list[tuple[str, ...]](), list[float]()
    for example in examples:
        if example.label is None or not math.isfinite(example.label):
            problem = "no label" if example.label is None else "no finite score"
            raise DataError(f"task '{task.name}': the example '{example.text[:40]}' has {problem}")
        texts.append((example.text, example.pair or ""))
        gold.append((float(example.label) - low) / (high - low))
    return PairDataset(texts=texts, gold=gold, classes=task.labels, is_scored=is_scored)


def _read_file(path: Path, *, strict: bool) -> PairDataset:
    """Read the user's table; rows with a blank cell are skipped, or with `strict` a DataError."""
    table = open_table(path)
    columns = {meaning: find_column(table.columns, meaning) for meaning in ("anchor", "positive", "negative")}
    if columns["anchor"] is None or columns["positive"] is None:
        expected_columns = "anchor and positive (and negative), or sentence1, sentence2 (and score or label)"
        raise DataError(f"{path}: has the columns {', '.join(table.columns)[:200]}; expected {expected_columns}")
    text_columns = [column for column in columns.values() if column is not None]
    has_gold = columns["negative"] is None
    score = find_column(table.columns, "score") if has_gold else None
    label = find_column(table.columns, "class") if has_gold else None

    def parse_row(row: TableRow) -> tuple[tuple[str, ...], float | str]:
        texts = tuple(row.get_text(column) for column in text_columns)
        return texts, _parse_score(row, score) if score else read_label(row, label) if label else 0.0

    rows = BlankRows(strict=strict).parse_all(path, table.read_rows(), parse_row)
    texts, values = [row[0] for row in rows], [row[1] for row in rows]
    if score is not None:
        return PairDataset(texts=texts, gold=_rescale([float(value) for value in values]), is_scored=True)
    classes = tuple(sorted({str(value) for value in values})) if label is not None else ()
    gold = [float(classes.index(str(value))) for value in values] if classes else [0.0] * len(texts)
    return PairDataset(texts=texts, gold=gold, classes=classes)


def _parse_score(row: TableRow, column: str) -> float:
    value = row.require(column)
    try:
        score = float(value)
    except (TypeError, ValueError):
        raise data_error(f"{row.location}: score {str(value)[:40]!r} is not a number") from None
    if not math.isfinite(score):
        raise data_error(f"{row.location}: score {score} is not finite; fill it in, or remove the row")
    return score


def _rescale(scores: Sequence[float]) -> list[float]:
    """Rescale scores by their minimum and maximum, if some are outside 0 to 1."""
    low, high = (0.0, 1.0) if min(scores) >= 0 and max(scores) <= 1 else (min(scores), max(scores))
    return [(value - low) / max(high - low, 1e-9) for value in scores]


@dataclass(frozen=True, slots=True)
class PairStream:
    """Batches of whole examples as a function of the step; equal texts share an id."""

    sequences: Sequences  # unique texts
    text_ids: Ints  # [E, K] the text of each column of each example
    gold: np.ndarray[tuple[int], np.dtype[np.float32]]  # [E]
    batch_size: int  # examples per batch
    seed: int
    ranks: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch; the last may have fewer examples."""
        return -(-len(self.text_ids) // self.batch_size)

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """Return the batch of a step, or a rank's share, which cannot be split further: its texts are compared."""
        if parts > self.ranks:
            raise ResourceError(
                f"out of memory with a batch of {format_count(self.batch_size, 'examples')}; lower the batch size"
            )
        epoch, position = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.text_ids))
        batch_ids = order[position * self.batch_size : (position + 1) * self.batch_size]
        part_ids = batch_ids[len(batch_ids) * part // parts : len(batch_ids) * (part + 1) // parts]
        return build_text_batch(
            self.sequences, self.text_ids[part_ids].T.ravel(), np.tile(self.gold[part_ids], self.text_ids.shape[1])
        )


def build_text_batch(sequences: Sequences, text_ids: Ints, gold: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Batch:
    """Lay out texts in a batch; `targets` hold the start of each, in the given order, and its gold value."""
    selection = sequences.take(text_ids)
    lengths = selection.lengths
    room = max(MIN_ROW_LENGTH, int(lengths.max(initial=0)))
    order = np.argsort(-lengths, kind="stable")  # by decreasing length, row by row
    rows = np.empty(len(text_ids), dtype=np.int64)
    rows[order] = next_fit(lengths[order], room)
    laid = np.argsort(rows, kind="stable")
    batch = lay_out(selection.take(laid), rows[laid], BatchShape(rows=int(rows.max(initial=0)) + 1, length=room))
    cells = np.empty(len(text_ids), dtype=np.int64)
    cells[laid] = np.arange(len(text_ids)) + rows[laid]
    labels = torch.full((batch.cells,), -1, dtype=torch.long)
    labels[torch.from_numpy(cells)] = torch.from_numpy(text_ids)
    index = batch.offsets[:-1].long()[torch.from_numpy(cells)]
    targets = Targets(index=index, labels=torch.from_numpy(np.ascontiguousarray(gold, dtype=np.float32)))
    return replace(batch, labels=labels, targets=targets)


def build_text_stream(
    dataset: PairDataset,
    tokenizer: Tokenizer,
    *,
    length: int | None,
    prompt: str,
    batch_size: int,
    seed: int,
    ranks: int = 1,
) -> tuple[PairStream, EncodedTexts]:
    """Return the stream of examples, and the encoded texts."""
    unique_texts, text_ids = deduplicate([text for texts in dataset.texts for text in texts])
    encoded_texts = encode_texts(tokenizer, [prompt + text for text in unique_texts], length)
    gold = np.array(dataset.gold, dtype=np.float32)
    text_ids = text_ids.reshape(-1, dataset.columns)
    return PairStream(encoded_texts.sequences, text_ids, gold, batch_size, seed, ranks), encoded_texts
