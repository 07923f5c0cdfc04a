"""Types with one sequence per example and a label for it, and the classification of a text or of a pair of texts.

[CLS] a fine film [SEP]                    1
[CLS] a dog runs [SEP] it sleeps [SEP]     0
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.sequence import Classification
from pretune.core.config import spec
from pretune.core.errors import UsageError, suggest
from pretune.core.log import join_names
from pretune.data.sequences import Ints
from pretune.metrics.numeric import softmax
from pretune.tasks.encoding import (
    EncodingRules,
    Floats,
    Items,
    PredictedLogits,
    build_items,
    build_next_token_targets,
    count_truncated,
    deduplicate,
    read_classes,
)
from pretune.tasks.example import Example, Examples, Prediction
from pretune.tasks.table import PAIR_COLUMNS, TableFile, TableRow, data_error
from pretune.tasks.table_reader import (
    MAX_NUMERIC_CLASSES,
    TableReader,
    UserTables,
    count_values,
    is_finite,
    pick_text_columns,
    read_label,
)
from pretune.tasks.task import Task, Template
from pretune.tasks.types.base import ChoicePrompt, Inputs, Outputs, Scoring, TaskType


@dataclass(frozen=True, kw_only=True)
class SequenceInputs(Inputs):
    """One sequence per example; subclasses read the labels."""

    def encode(self, rules: EncodingRules, examples: Examples, *, training: bool) -> Items:
        """Encode one sequence per example."""
        count = len(examples)
        has_pairs = any(example.pair is not None for example in examples)
        seconds = [example.pair or "" for example in examples] if has_pairs else []
        unique_texts, text_ids = deduplicate([*(example.text for example in examples), *seconds])
        pool = rules.tokenize(unique_texts)
        layout, lost = rules.fit(pool, text_ids[:count], text_ids[count:] if has_pairs else None)
        text = pool.lengths[text_ids].reshape(-1, count).sum(axis=0)
        sequences = rules.set_segments(layout.sequences)
        if training:
            targets = build_next_token_targets(sequences) if rules.has_lm_loss else None
            sequences = replace(sequences, labels=self.encode_labels(rules, examples), targets=targets)
        return build_items(sequences, count_truncated(lost, text))

    def encode_labels(self, rules: EncodingRules, examples: Examples) -> Any:
        """Return the label of each example, or a row of labels."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SequenceOutputs(Outputs):
    """A row of logits per example."""

    is_explainable = True

    def select_logits(
        self, rules: EncodingRules, example: Example, items: Items, logits: Floats, label: str | None = None
    ) -> PredictedLogits:
        """Return the largest logit of the sequence, or that of a label; for scores the only one."""
        column = find_label(rules.task, label, int(logits[0].argmax()))
        name = rules.task.labels[column] if rules.task.labels else "score"
        return PredictedLogits(sequence=0, rows=(0,), columns=(column,), name=name)


@spec
class LabelledTextReader(TableReader):
    """Reader of texts and labels in named columns; subclasses read the labels."""

    labels: tuple[str, ...] = ()

    @classmethod
    def from_tables(cls, tables: UserTables) -> Self:
        """Return the reader of a user's files, with the labels of the training data."""
        text, label, pair = pick_text_columns(tables)
        labels = cls.collect_labels(tables.train, label, (text, pair)) if tables.labels is None else tables.labels
        return cls(text=text, label=label, pair=pair, labels=labels)

    @classmethod
    def collect_labels(cls, table: TableFile, column: str, texts: Sequence[str | None]) -> tuple[str, ...]:
        """Return the labels of the training data with these `texts`; empty if they are scores."""
        raise NotImplementedError

    def parse_row(self, row: TableRow) -> Example:
        pair = row.get_text(self.pair) if self.pair else None
        return self.add_gold(Example(text=row.get_text(self.text), pair=pair, id=row.number), row)

    def add_gold(self, example: Example, row: TableRow) -> Example:
        """Return an example with the label of its row."""
        raise NotImplementedError

    def describe_columns(self, columns: Iterable[str]) -> str:
        """Describe the role of each column, and the ignored ones.

        >>> reader = LabelledTextReader(text="review", label="stars")
        >>> reader.describe_columns(["id", "review", "stars"])
        "text column 'review', label column 'stars'; ignored: id"
        >>> reader = LabelledTextReader(text="premise", label="label")
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


@spec
class ClassReader(LabelledTextReader):
    """Reader of texts and their class."""

    @classmethod
    def collect_labels(cls, table: TableFile, column: str, texts: Sequence[str | None]) -> tuple[str, ...]:
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

    def add_gold(self, example: Example, row: TableRow) -> Example:
        value = read_label(row, self.label)
        check_known(row, value, self.labels)
        return replace(example, label=self.labels.index(value))


@dataclass(frozen=True, kw_only=True)
class ClassInputs(SequenceInputs):
    """A text, or a pair of texts, and its class."""

    def build_head(self, task: Task) -> TaskHead:
        return Classification(classes=len(task.labels), labels=task.labels)

    def encode_labels(self, rules: EncodingRules, examples: Examples) -> Ints:
        return read_classes(rules.task, examples)

    def build_user_task(self, tables: UserTables) -> Task:
        """Build a task of type classification, or of type pair if there are second texts."""
        reader = ClassReader.from_tables(replace(tables, has_pair=True) if self.second_text == "required" else tables)
        source = "classify: {text} {pair}" if reader.pair else "classify: {text}"
        kind, metrics = "pair" if reader.pair else "classification", ("accuracy", "f1_macro")
        task = tables.build_task(kind, reader, metrics, reader.labels)
        return replace(task, template=Template(source=source, targets=reader.labels))

    def reads_one_text(self, text: str | None, pair: str | None) -> bool:
        return pair is None and self.second_text != "required"  # pairs of texts are another type


@dataclass(frozen=True, kw_only=True)
class ClassOutputs(SequenceOutputs):
    """A logit per class."""

    def decode(self, rules: EncodingRules, examples: Examples, items: Items, logits: Floats) -> list[Prediction]:
        """Return the most likely class of each example, and the probabilities of all."""
        return [choose_best(row) for row in logits]


@dataclass(frozen=True, kw_only=True)
class ClassScoring(Scoring):
    """A class is right or wrong."""

    def count_labels(self, task: Task, examples: Examples) -> Mapping[str, float]:
        counts = Counter(example.label for example in examples)
        return {name: counts.get(number, 0) for number, name in enumerate(task.labels)}


CLASSIFICATION = TaskType(
    name="classification",
    inputs=ClassInputs(),
    outputs=ClassOutputs(),
    scoring=ClassScoring(
        gold="class",
        evaluator=ChoicePrompt(text="Text: {text}\nLabel: {answer}"),
        baselines={name: name for name in ("majority", "svm", "vectors", "logistic", "bilstm")},
    ),
)
"""One of several classes for a text."""

PAIR = TaskType(
    name="pair",
    inputs=ClassInputs(second_text="required"),
    outputs=ClassOutputs(),
    scoring=replace(
        CLASSIFICATION.scoring, evaluator=ChoicePrompt(text="Text 1: {text}\nText 2: {pair}\nLabel: {answer}")
    ),
)
"""One of several classes for a pair of texts."""


def find_label(task: Task, label: str | None, default: int) -> int:
    """Return the index of a label, by default that of the prediction."""
    if label is None:
        return default
    if label not in task.labels:
        raise UsageError(f"unknown label '{label[:40]}'{suggest(label, task.labels)}")
    return task.labels.index(label)


def check_known(row: TableRow, value: str, labels: tuple[str, ...]) -> None:
    """Raise DataError for a label that the training data does not have."""
    if value not in labels:
        raise data_error(
            f"{row.location}: label {value[:40]!r} is not in the training data{suggest(value, labels)} (labels: "
            f"{join_names(labels)})"
        )


def choose_best(row: Floats) -> Prediction:
    """Return the prediction of the highest logit, with the probabilities of all."""
    shares = tuple(softmax(row.astype(np.float64)).tolist())
    return Prediction(label=int(row.argmax()), probabilities=shares, scores=tuple(row.tolist()))
