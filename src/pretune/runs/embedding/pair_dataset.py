"""What a model compares: pairs, triplets, classes of pairs and scored pairs, from tasks and from files of one's own.

read(task="snli")                  # premise, entailed text, contradicting text where there is one
read(task="snli", loss="classes")  # premise, hypothesis, which of three
read(train="pairs.tsv")            # columns by name: anchor, positive, negative; or two texts and a score or label
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
    """Examples of as many texts each, with what is said of each (a class, a score from 0 to 1, or nothing: 0)."""

    texts: list[tuple[str, ...]]
    gold: list[float]
    classes: tuple[str, ...] = ()
    is_scored: bool = False

    @property
    def columns(self) -> int:
        """Texts of an example."""
        return len(self.texts[0])

    def build_default_loss(self) -> ContrastiveLoss:
        """The loss that goes with them where none is named."""
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
    """The examples of a task's split or of a file; of inference, entailed pairs unless classes are to be learnt."""
    if loss is not None and loss not in LOSSES:
        raise UsageError(f"unknown loss '{loss}'{suggest(loss, LOSSES)} ({', '.join(LOSSES)})")
    if (task is None) == (train is None):
        raise UsageError("what to learn from is a task (embedding:NAME) or a file (--train FILE): give one of the two")
    found = _read_file(Path(train)) if train is not None else _read_task(TASKS.get(task or ""), data, split)
    if found.classes and loss != "classes":
        if {ENTAILMENT, CONTRADICTION} <= {*found.classes}:
            return build_entailment_pairs(found)
        if loss is not None:
            raise UsageError(f"the loss '{loss}' needs pairs that belong together, found the classes {found.classes}")
    return found


def select_loss(dataset: PairDataset, loss: str | None) -> ContrastiveLoss:
    """The loss by its name, or the usual one; refused where the examples do not have what it asks for."""
    if loss is None:
        return dataset.build_default_loss()
    chosen = LOSSES[loss]
    has = "score" if dataset.is_scored else "class" if dataset.classes else "nothing"
    if chosen.gold not in ("nothing", has) or (has == "score" and chosen.gold == "nothing"):
        raise UsageError(f"the loss '{loss}' needs examples with {chosen.gold}, these have {has}")
    if dataset.columns not in chosen.columns:
        raise UsageError(f"the loss '{loss}' compares {chosen.columns} texts, these examples have {dataset.columns}")
    return PairClasses(classes=len(dataset.classes)) if chosen is PairClasses else chosen()


def build_entailment_pairs(dataset: PairDataset) -> PairDataset:
    """Inference as pairs that belong together; a contradiction of the same premise is a third text (Gao et al., 2021).

    Where no premise has both, or some lack one, there are pairs alone.
    """
    yes, no = (float(dataset.classes.index(name)) for name in (ENTAILMENT, CONTRADICTION))
    against: dict[str, str] = {}
    for (premise, other), label in zip(dataset.texts, dataset.gold, strict=True):
        if label == no:
            against.setdefault(premise, other)
    pairs = [texts for texts, label in zip(dataset.texts, dataset.gold, strict=True) if label == yes]
    triplets = [(one, other, against[one]) for one, other in pairs if one in against]
    chosen: list[tuple[str, ...]] = list(triplets if 2 * len(triplets) > len(pairs) else pairs)
    if not chosen:
        raise DataError("no pair is entailed; there is nothing that belongs together")
    return PairDataset(texts=chosen, gold=[0.0] * len(chosen))


def _read_task(task: Task, data: str | os.PathLike[str] | None, split: str) -> PairDataset:
    examples = list(task.find(split, data).read())
    if task.kind not in ("pair", "regression") or not all(example.pair for example in examples):
        raise UsageError(f"task '{task.name}' is of the kind '{task.kind}'; vectors are learnt from pairs of texts")
    return _collect_pairs(task, examples)


def _collect_pairs(task: Task, examples: Iterable[Example]) -> PairDataset:
    low, high = task.scale or (0.0, 1.0)
    texts, gold = list[tuple[str, ...]](), list[float]()
    for example in examples:
        if example.label is None:
            raise DataError(f"task '{task.name}': the example '{example.text[:40]}' has no label to learn from")
        texts.append((example.text, example.pair or ""))
        scored = task.kind == "regression"
        gold.append((float(example.label) - low) / (high - low) if scored else float(example.label))
    return PairDataset(texts=texts, gold=gold, classes=task.labels, is_scored=task.kind == "regression")


def _read_file(path: Path) -> PairDataset:
    """A table of one's own."""
    rows = list(_read_table(path))
    if not rows:
        raise DataError(f"{path}: no rows in it; there should be a pair of texts in each")
    head = rows[0].values
    columns = [_find_column(head, names) for names in (FIRST_COLUMNS, SECOND_COLUMNS, THIRD_COLUMNS)]
    if columns[0] is None or columns[1] is None:
        wanted = "anchor and positive (and negative), or sentence1, sentence2 (and score or label)"
        raise DataError(f"{path}: its columns are {', '.join(head)[:200]}; expected {wanted}")
    texts = [tuple(row.get_text(column) for column in columns if column is not None) for row in rows]
    score, label = _find_column(head, SCORE_COLUMNS), _find_column(head, LABEL_COLUMNS)
    if score is not None and columns[2] is None:
        return PairDataset(texts=texts, gold=_parse_scores(rows, score), is_scored=True)
    if label is not None and columns[2] is None:
        names = [str(row.get(label)) for row in rows]
        known = tuple(sorted({*names}))
        return PairDataset(texts=texts, gold=[float(known.index(name)) for name in names], classes=known)
    return PairDataset(texts=texts, gold=[0.0] * len(texts))


def _read_table(path: Path) -> Iterable[TableRow]:
    kinds: dict[str, Tsv | Jsonl] = {".jsonl": Jsonl(), ".tsv": Tsv(), ".csv": Csv()}
    kind = next((kinds[suffix] for suffix in path.suffixes[-2:] if suffix in kinds), None)
    if kind is None:
        raise UsageError(f"'{path}': pairs are read from {', '.join(kinds)}, which may be compressed")
    return kind.read_rows(path)


def _parse_scores(rows: Sequence[TableRow], column: str) -> list[float]:
    """Scores on the scale from 0 to 1; those on another are brought to it by their least and largest."""
    found: list[float] = []
    for row in rows:
        try:
            found.append(float(row.get(column)))
        except (TypeError, ValueError):
            raise DataError(f"{row.location}: score {str(row.get(column))[:40]!r} is not a number") from None
    low, high = (0.0, 1.0) if min(found) >= 0 and max(found) <= 1 else (min(found), max(found))
    return [(value - low) / max(high - low, 1e-9) for value in found]


def _find_column(head: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in head), None)
