"""Classification of a text, or of a pair of texts: one of several classes."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.classification import Classification
from pretune.core.errors import suggest
from pretune.core.format import join_names
from pretune.data.sequences import Ints
from pretune.tasks.encoding import EncodingRules, Floats, Items, read_classes
from pretune.tasks.example import Example, Prediction
from pretune.tasks.table import TableFile, TableRow, data_error
from pretune.tasks.task import Template
from pretune.tasks.types.sequence import SequenceType
from pretune.tasks.user_table import MAX_NUMERIC_CLASSES, count_values, is_finite, read_label

if TYPE_CHECKING:
    from pretune.tasks.encoder import TaskEncoder


class SequenceClassification(SequenceType):
    """One of several classes for a text."""

    evaluator = "few_shot"
    prompt = "Text: {text}\nLabel: {answer}"
    baselines: ClassVar = {name: name for name in ("majority", "svm", "vectors", "logistic", "bilstm")}
    probe = "classes"
    errors_view = "classes"

    def build_head(self) -> TaskHead:
        return Classification(classes=len(self.task.labels), labels=self.task.labels)

    def encode_labels(self, rules: EncodingRules, examples: Sequence[Example]) -> Ints:
        return read_classes(self.task, examples)

    def decode(
        self, encoder: "TaskEncoder", examples: Sequence[Example], items: Items, logits: Floats
    ) -> list[Prediction]:
        """Return the most likely class of each example, and the probabilities of all."""
        return [choose_best(row) for row in logits]

    def count_labels(self, examples: Sequence[Example]) -> dict[str, Any]:
        counts = Counter(example.label for example in examples)
        return {name: counts.get(number, 0) for number, name in enumerate(self.task.labels)}

    def find_missing_labels(self, examples: Sequence[Example]) -> list[str]:
        numbers = {example.label for example in examples}
        return [name for number, name in enumerate(self.task.labels) if number not in numbers]

    def describe_alternative(self) -> str:
        numeric = all(map(is_finite, self.task.labels))
        return " (inferred; use --type regression for scores)" if numeric else ""

    @classmethod
    def read_labels(cls, table: TableFile, column: str) -> tuple[str, ...]:
        """Return the classes of the training data, sorted by number or alphabet."""
        counts, _ = count_values(table, column)
        if len(counts) == 1:
            label = next(iter(counts))
            raise data_error(f"{table.path}: every row has the label {label[:40]!r}; at least two classes are needed")
        if len(counts) == counts.total() and len(counts) > MAX_NUMERIC_CLASSES:
            raise data_error(
                f"{table.path}: every value of '{column}' is different, so it is no label; choose another with "
                "--label COL"
            )
        return tuple(sorted(counts, key=float if all(map(is_finite, counts)) else str))

    @classmethod
    def read_gold(cls, row: TableRow, column: str, labels: tuple[str, ...]) -> dict[str, Any]:
        value = read_label(row, column)
        check_known(row, value, labels)
        return {"label": labels.index(value)}

    @classmethod
    def describe_user_task(cls, labels: tuple[str, ...], pair: str | None) -> dict[str, Any]:
        return {
            "kind": "pair" if pair else "classification",
            "metrics": ("accuracy", "f1_macro"),
            "template": Template(source=f"classify: {'{text} {pair}' if pair else '{text}'}", targets=labels),
        }


class PairClassification(SequenceClassification):
    """One of several classes for a pair of texts."""

    needs_pair = True
    finds_pair = True
    has_single_text = False
    prompt = "Text 1: {text}\nText 2: {pair}\nLabel: {answer}"
    pair_gold = "class"


def check_known(row: TableRow, value: str, labels: tuple[str, ...]) -> None:
    """Raise DataError for a label that the training data does not have."""
    if value not in labels:
        raise data_error(
            f"{row.location}: label {value[:40]!r} is not in the training data{suggest(value, labels)} (labels: "
            f"{join_names(labels)})"
        )


def choose_best(row: Floats) -> Prediction:
    """Return the prediction of the highest logit, with the probabilities of all."""
    exponentials = np.exp(row.astype(np.float64) - row.max())
    shares = np.asarray(exponentials / exponentials.sum())
    return Prediction(label=int(row.argmax()), probabilities=tuple(shares.tolist()), scores=tuple(row.tolist()))
