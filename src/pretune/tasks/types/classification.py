"""Types with one sequence per example and a label for it, and the classification of a text or of a pair of texts.

[CLS] a fine film [SEP]                    1
[CLS] a dog runs [SEP] it sleeps [SEP]     0
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.sequence import Classification
from pretune.core.config import spec
from pretune.core.errors import suggest
from pretune.core.log import join_names
from pretune.data.sequences import Ints
from pretune.tasks.encoding import (
    Counts,
    EncodingRules,
    Floats,
    Items,
    PredictedLogits,
    build_items,
    build_next_token_targets,
    deduplicate,
    read_classes,
)
from pretune.tasks.example import Example, Prediction
from pretune.tasks.table import PAIR_COLUMNS, TableFile, TableRow, data_error
from pretune.tasks.task import Task, Template
from pretune.tasks.types import TASK_TYPES
from pretune.tasks.types.base import TaskType
from pretune.tasks.user_table import (
    MAX_NUMERIC_CLASSES,
    TableReader,
    UserTables,
    count_values,
    is_finite,
    pick_text_columns,
    read_label,
)

if TYPE_CHECKING:
    from pretune.tasks.encoder import TaskEncoder


class SequenceType(TaskType):
    """Type with one sequence per example; subclasses read the labels."""

    is_explainable = True

    def encode(self, rules: EncodingRules, examples: Sequence[Example], *, training: bool) -> Items:
        """Encode one sequence per example."""
        count = len(examples)
        has_pairs = any(example.pair is not None for example in examples)
        texts = [example.text for example in examples]
        unique_texts, text_ids = deduplicate(
            [*texts, *(example.pair or "" for example in examples)] if has_pairs else texts
        )
        pool = rules.tokenize(unique_texts)
        layout, lost = rules.fit(pool, text_ids[:count], text_ids[count:] if has_pairs else None)
        text = pool.lengths[text_ids].reshape(-1, count).sum(axis=0)
        counts = Counts(examples=count, cut=int((lost > 0).sum()), lost=int(lost.sum()), empty=int((text == 0).sum()))
        sequences = rules.set_segments(layout.sequences)
        if training:
            targets = build_next_token_targets(sequences) if rules.has_lm_loss else None
            sequences = replace(sequences, labels=self.encode_labels(rules, examples), targets=targets)
        return build_items(sequences, counts=counts)

    def encode_labels(self, rules: EncodingRules, examples: Sequence[Example]) -> Any:
        """Return the label of each example, or a row of labels."""
        raise NotImplementedError

    def select_logits(
        self, encoder: "TaskEncoder", example: Example, items: Items, logits: Floats, label: str | None = None
    ) -> PredictedLogits:
        """Return the largest logit of the sequence, or that of a label; for scores the only one."""
        column = self.find_label(label, int(logits[0].argmax()))
        name = self.task.labels[column] if self.task.labels else "score"
        return PredictedLogits(sequence=0, rows=(0,), columns=(column,), name=name)

    @classmethod
    def read_labels(cls, table: TableFile, column: str, texts: Sequence[str | None]) -> tuple[str, ...]:
        """Return the labels of the training data with these `texts`; empty if they are scores."""
        raise NotImplementedError

    @classmethod
    def read_gold(cls, row: TableRow, column: str, labels: tuple[str, ...]) -> dict[str, Any]:
        """Return the fields of an example that hold the label of a row."""
        raise NotImplementedError

    @classmethod
    def describe_user_task(cls, labels: tuple[str, ...], pair: str | None) -> dict[str, Any]:
        """Return the kind, the metrics and the template of a user's task."""
        raise NotImplementedError

    @classmethod
    def build_user_task(cls, tables: UserTables) -> Task:
        text, label, pair = pick_text_columns(tables)
        labels = cls.read_labels(tables.train, label, (text, pair)) if tables.labels is None else tables.labels
        fields = cls.describe_user_task(labels, pair)
        reader = LabelledTextReader(text=text, label=label, pair=pair, labels=labels, task_kind=fields["kind"])
        return tables.build_task(reader=reader, labels=labels, **fields)


@spec
class LabelledTextReader(TableReader):
    """Reader of texts and labels in named columns."""

    task_kind: str
    labels: tuple[str, ...] = ()

    def parse_row(self, row: TableRow) -> Example:
        task_type = TASK_TYPES.get(self.task_kind)
        assert issubclass(task_type, SequenceType)
        return Example(
            text=row.get_text(self.text),
            pair=row.get_text(self.pair) if self.pair else None,
            id=row.location.rpartition(":")[2],
            **task_type.read_gold(row, self.label, self.labels),
        )

    def describe_columns(self, columns: Iterable[str]) -> str:
        """Describe the role of each column, and the ignored ones.

        >>> reader = LabelledTextReader(text="review", label="stars", task_kind="classification")
        >>> reader.describe_columns(["id", "review", "stars"])
        "text column 'review', label column 'stars'; ignored: id"
        >>> reader = LabelledTextReader(text="premise", label="label", task_kind="classification")
        >>> reader.describe_columns(["premise", "hypothesis", "label"])
        "text column 'premise', label column 'label'; ignored: hypothesis (--pair hypothesis uses it as second text)"
        """
        pair = f", second text column '{self.pair}'" if self.pair else ""
        ignored_columns = [column for column in columns if column not in (self.text, self.pair, self.label)]
        note = f"; ignored: {', '.join(ignored_columns[:20])}" if ignored_columns else ""
        first = self.text.strip().lower()
        pair_column = next((second for name, second in PAIR_COLUMNS if name == first and second in ignored_columns), "")
        if not self.pair and pair_column:
            note += f" (--pair {pair_column} uses it as second text)"
        return f"text column '{self.text}'{pair}, label column '{self.label}'{note}"


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
    def read_labels(cls, table: TableFile, column: str, texts: Sequence[str | None]) -> tuple[str, ...]:
        """Return the classes of the training data, sorted by number or alphabet."""
        counts, _ = count_values(table, column, texts)
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

    def reads_one_text(self, text: str | None, pair: str | None) -> bool:
        return pair is None and not self.needs_pair  # pairs of texts are another type


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
