"""Multi-label classification: any number of labels for a text or a pair of texts.

    text                                    labels
    the film is long but funny              pace|humour           or in JSONL: ["pace", "humour"]
    nothing to say                                                no label

The head has a sigmoid per label. A label is predicted if its probability is above a threshold, one for all labels,
which maximises micro F1 on dev and is stored with the task.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.sequence import MultiLabel
from pretune.core.config import spec
from pretune.tasks.encoding import EncodingRules, Floats, Items, number_tags
from pretune.tasks.example import Example, Examples, Prediction, Predictions
from pretune.tasks.table import BlankRows, TableFile, TableRow, data_error
from pretune.tasks.table_reader import LABEL_SEPARATOR, UserTables, check_filled
from pretune.tasks.task import Task
from pretune.tasks.types.base import Scoring, TaskType, format_probabilities
from pretune.tasks.types.classification import LabelledTextReader, SequenceInputs, SequenceOutputs, check_known

DEFAULT_THRESHOLD = 0.5


@spec
class LabelListReader(LabelledTextReader):
    """Reader of texts and their labels, any number of them."""

    @classmethod
    def collect_labels(cls, table: TableFile, column: str, texts: Sequence[str | None]) -> tuple[str, ...]:
        """Return the labels of the training data, sorted."""

        def parse(row: TableRow) -> tuple[str, ...]:
            check_filled(row, texts)
            return read_label_list(row, column)

        blanks = BlankRows(strict=table.strict)
        labels = sorted({name for names in blanks.parse(table.read_rows(), parse) for name in names})
        if len(labels) < 2:
            raise data_error(
                f"{table.path}: at least two different labels are needed in '{column}', got {len(labels)}; separate "
                f"several with {LABEL_SEPARATOR}, or pass a JSON list"
            )
        return tuple(labels)

    def add_gold(self, example: Example, row: TableRow) -> Example:
        names = read_label_list(row, self.label)
        for name in names:
            check_known(row, name, self.labels)
        return replace(example, tags=names)


@dataclass(frozen=True, kw_only=True)
class MultiLabelInputs(SequenceInputs):
    """A text or a pair of texts, and its labels."""

    def build_head(self, task: Task) -> TaskHead:
        return MultiLabel(classes=len(task.labels), labels=task.labels)

    def encode_labels(self, rules: EncodingRules, examples: Examples) -> NDArray[np.float32]:
        """Return 1 for the labels of each example and 0 for the others `[E, K]`."""
        names = {name: number for number, name in enumerate(rules.task.labels)}
        rows = np.zeros((len(examples), len(names)), dtype=np.float32)
        for number, example in enumerate(examples):
            rows[number, number_tags(rules.task, names, number, example, "label")] = 1
        return rows

    def build_user_task(self, tables: UserTables) -> Task:
        reader = LabelListReader.from_tables(tables)
        return tables.build_task("multi-label", reader, ("multilabel_f1",), reader.labels)


@dataclass(frozen=True, kw_only=True)
class MultiLabelOutputs(SequenceOutputs):
    """A logit per label; those above a threshold are predicted."""

    def decode(self, rules: EncodingRules, examples: Examples, items: Items, logits: Floats) -> list[Prediction]:
        """Return the labels with a probability above the default threshold, and the probabilities of all."""
        shares = 1 / (1 + np.exp(-logits.astype(np.float64)))
        predictions = [Prediction(probabilities=tuple(row.tolist())) for row in shares]
        return self.apply_threshold(rules.task, predictions, DEFAULT_THRESHOLD)

    def find_threshold(self, task: Task, examples: Examples, predictions: Predictions) -> float | None:
        """Return the threshold with the best micro F1, in the middle between two probabilities."""
        shares = np.array([prediction.probabilities for prediction in predictions])
        gold = np.array([[name in example.tags for name in task.labels] for example in examples])
        order = np.argsort(-shares, axis=None, kind="stable")
        sorted_shares, right = shares.ravel()[order], np.cumsum(gold.ravel()[order])
        scores = 2 * right / (np.arange(1, len(order) + 1) + gold.sum())  # with the first labels predicted
        is_last = np.append(sorted_shares[:-1] > sorted_shares[1:], True)  # of equal probabilities, all or none
        best = int(np.argmax(np.where(is_last, scores, -1)))
        following = sorted_shares[best + 1] if best + 1 < len(order) else 0.0
        return float(sorted_shares[best] + following) / 2

    def apply_threshold(self, task: Task, predictions: Predictions, threshold: float) -> list[Prediction]:
        """Return the predictions with the labels above a threshold, in the order of the task's."""
        return [
            replace(
                prediction,
                tags=tuple(
                    name for name, share in zip(task.labels, prediction.probabilities, strict=True) if share > threshold
                ),
            )
            for prediction in predictions
        ]

    def combine(self, task: Task, predictions: Predictions, threshold: float | None = None) -> Prediction:
        """Return mean probabilities, and the labels above the threshold."""
        shares = np.mean([prediction.probabilities for prediction in predictions], axis=0)
        mean = Prediction(probabilities=tuple(shares.tolist()))
        return self.apply_threshold(task, [mean], DEFAULT_THRESHOLD if threshold is None else threshold)[0]

    def format(self, task: Task, prediction: Prediction) -> dict[str, object]:
        shares = format_probabilities(task, prediction)
        return {"labels": list(prediction.tags), **({"probabilities": shares} if shares else {})}


@dataclass(frozen=True, kw_only=True)
class MultiLabelScoring(Scoring):
    """Each label is right or wrong."""

    def count_labels(self, task: Task, examples: Examples) -> Mapping[str, float]:
        counts = Counter(name for example in examples for name in example.tags)
        return {name: counts[name] for name in task.labels}

    def format_gold(self, task: Task, example: Example) -> Any:
        return list(example.tags)


MULTI_LABEL = TaskType(
    name="multi-label",
    inputs=MultiLabelInputs(),
    outputs=MultiLabelOutputs(),
    scoring=MultiLabelScoring(gold="labels", baselines={"majority": "frequent_labels", "svm": "one_vs_rest"}),
)
"""Any number of labels for a text or a pair of texts."""


def read_label_list(row: TableRow, column: str) -> tuple[str, ...]:
    """Return the labels of a row: a list, a JSON list as text, or text separated by "|"; an empty cell has none."""
    value = row.get(column)
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            raise data_error(f"{row.location}: '{column}' is not a JSON list: {value[:40]!r}") from None
    if isinstance(value, str):
        value = value.split(LABEL_SEPARATOR)
    values = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(name, list | dict) for name in values):
        raise data_error(f"{row.location}: '{column}' must be a list of labels, got {str(value)[:40]}")
    return tuple(dict.fromkeys(str(name).strip() for name in values if str(name).strip()))
