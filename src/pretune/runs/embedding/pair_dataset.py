"""Datasets for contrastive training: pairs, triplets, classes of pairs and scored pairs, from tasks and files.

read_dataset(task="snli")                  # premise, entailed text, contradicting text where there is one
read_dataset(task="snli", loss="classes")  # premise, hypothesis, class
read_dataset(train="pairs.tsv")            # columns anchor, positive, negative; or two texts and a score or label
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.adaptation.contrastive import LOSSES, ContrastiveLoss, CosineScore, InBatch, PairClasses
from pretune.core.errors import DataError, UsageError, suggest
from pretune.tasks import TASKS
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Csv, Jsonl, TableRow, Tsv
from pretune.tasks.task import Task

FIRST_COLUMNS = (
    "anchor",
    "query",
    "sentence1",
    "text1",
    "premise",
    "question1",
    "text_a",
    "question",
    "text",
    "sentence_A",
)
SECOND_COLUMNS = (
    "positive",
    "document",
    "sentence2",
    "text2",
    "hypothesis",
    "question2",
    "text_b",
    "answer",
    "pair",
    "sentence_B",
)
THIRD_COLUMNS = ("negative", "hard_negative", "text3", "sentence3")
SCORE_COLUMNS, LABEL_COLUMNS = ("score", "similarity", "relatedness_score"), ("label", "gold_label", "class")
ENTAILMENT, CONTRADICTION = "entailment", "contradiction"


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

    def build_default_loss(self) -> ContrastiveLoss:
        """Return the default loss for these examples."""
        if self.is_scored:
            return CosineScore()
        return PairClasses(classes=len(self.classes)) if self.classes else InBatch()


def read_dataset(
    *,
    task: str | None = None,
    train: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    split: str = "train",
    loss: str | None = None,
) -> PairDataset:
    """Read the examples of a task's split or of a file; NLI gives entailed pairs unless the loss is `classes`."""
    if loss is not None and loss not in LOSSES:
        raise UsageError(f"unknown loss '{loss}'{suggest(loss, LOSSES)} ({', '.join(LOSSES)})")
    if (task is None) == (train is None):
        raise UsageError("pass either a task (embedding:NAME) or a file (--train FILE) to train on")
    dataset = _read_file(Path(train)) if train is not None else _read_task(TASKS.get(task or ""), data, split)
    if dataset.classes and loss != "classes":
        if {ENTAILMENT, CONTRADICTION} <= {*dataset.classes}:
            return build_entailment_pairs(dataset)
        if loss is not None:
            raise UsageError(f"the loss '{loss}' needs positive pairs, got pairs with the classes {dataset.classes}")
    return dataset


def select_loss(dataset: PairDataset, loss: str | None) -> ContrastiveLoss:
    """Return the loss of this name, or the default; raises if the examples do not fit it."""
    if loss is None:
        return dataset.build_default_loss()
    loss_class = LOSSES[loss]
    has = "score" if dataset.is_scored else "class" if dataset.classes else "nothing"
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
    if task.kind not in ("pair", "regression") or not all(example.pair for example in examples):
        raise UsageError(f"task '{task.name}' has the kind '{task.kind}'; embeddings train on pairs of texts")
    return _collect_pairs(task, examples)


def _collect_pairs(task: Task, examples: Iterable[Example]) -> PairDataset:
    low, high = task.scale or (0.0, 1.0)
    texts, gold = list[tuple[str, ...]](), list[float]()
    for example in examples:
        if example.label is None:
            raise DataError(f"task '{task.name}': the example '{example.text[:40]}' has no label")
        texts.append((example.text, example.pair or ""))
        is_scored = task.kind == "regression"
        gold.append((float(example.label) - low) / (high - low) if is_scored else float(example.label))
    return PairDataset(texts=texts, gold=gold, classes=task.labels, is_scored=task.kind == "regression")


def _read_file(path: Path) -> PairDataset:
    """Read the user's table."""
    rows = list(_read_table(path))
    if not rows:
        raise DataError(f"{path}: no rows; expected a pair of texts per row")
    head = rows[0].values
    columns = [_find_column(head, names) for names in (FIRST_COLUMNS, SECOND_COLUMNS, THIRD_COLUMNS)]
    if columns[0] is None or columns[1] is None:
        expected_columns = "anchor and positive (and negative), or sentence1, sentence2 (and score or label)"
        raise DataError(f"{path}: has the columns {', '.join(head)[:200]}; expected {expected_columns}")
    texts = [tuple(row.get_text(column) for column in columns if column is not None) for row in rows]
    score, label = _find_column(head, SCORE_COLUMNS), _find_column(head, LABEL_COLUMNS)
    if score is not None and columns[2] is None:
        return PairDataset(texts=texts, gold=_parse_scores(rows, score), is_scored=True)
    if label is not None and columns[2] is None:
        names = [str(row.get(label)) for row in rows]
        classes = tuple(sorted({*names}))
        return PairDataset(texts=texts, gold=[float(classes.index(name)) for name in names], classes=classes)
    return PairDataset(texts=texts, gold=[0.0] * len(texts))


def _read_table(path: Path) -> Iterable[TableRow]:
    kinds: dict[str, Tsv | Jsonl] = {".jsonl": Jsonl(), ".tsv": Tsv(), ".csv": Csv()}
    kind = next((kinds[suffix] for suffix in path.suffixes[-2:] if suffix in kinds), None)
    if kind is None:
        raise UsageError(f"'{path}': pairs must be a file with the suffix {', '.join(kinds)}, optionally compressed")
    return kind.read_rows(path)


def _parse_scores(rows: Sequence[TableRow], column: str) -> list[float]:
    """Parse scores; values outside 0 to 1 are rescaled by their minimum and maximum."""
    scores: list[float] = []
    for row in rows:
        try:
            scores.append(float(row.get(column)))
        except (TypeError, ValueError):
            raise DataError(f"{row.location}: score {str(row.get(column))[:40]!r} is not a number") from None
    low, high = (0.0, 1.0) if min(scores) >= 0 and max(scores) <= 1 else (min(scores), max(scores))
    return [(value - low) / max(high - low, 1e-9) for value in scores]


def _find_column(head: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in head), None)
