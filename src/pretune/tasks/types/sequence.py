"""Types with one sequence per example and a label for it: the encoding, and users' tables of labelled texts.

[CLS] a fine film [SEP]                    1
[CLS] a dog runs [SEP] it sleeps [SEP]     0
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.tasks.encoding import (
    Counts,
    EncodingRules,
    Items,
    build_items,
    build_next_token_targets,
    deduplicate,
)
from pretune.tasks.example import Example
from pretune.tasks.table import PAIR_COLUMNS, TableFile, TableRow, data_error, find_pair_columns, pick_column
from pretune.tasks.task import Task
from pretune.tasks.types import TASK_TYPES
from pretune.tasks.types.base import TaskType
from pretune.tasks.user_table import TableReader, UserTables

MAX_NUMERIC_CLASSES = 20
"""Maximum number of different integers that are treated as classes, not scores."""
LABEL_SEPARATOR = "|"
"""Separator of several labels in a cell."""


class SequenceType(TaskType):
    """Type with one sequence per example; subclasses read the labels."""

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

    @classmethod
    def read_labels(cls, table: TableFile, column: str) -> tuple[str, ...]:
        """Return the labels of the training data; empty if they are scores."""
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
        text, label, pair = _pick_columns(tables)
        labels = cls.read_labels(tables.train, label) if tables.labels is None else tables.labels
        fields = cls.describe_user_task(labels, pair)
        reader = LabelledTextReader(text=text, label=label, pair=pair, labels=labels, task_kind=fields["kind"])
        for _ in tables.read(reader):
            pass
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


def _pick_columns(tables: UserTables) -> tuple[str, str, str | None]:
    """Return the columns of text, label and second text, which all files must have."""
    text, pair, train = tables.text, tables.pair, tables.train
    if text is None and pair is None and tables.has_pair is not False:
        text, pair = find_pair_columns(train.columns, tables.label) or (None, None)
    if tables.has_pair and pair is None:
        raise DataError(f"{train.path}: two texts are needed; name the second column with --column pair=NAME")
    text = pick_column(train, text, "text", "text")
    label = pick_column(train, tables.label, "label", "label")
    if text == label or pair in (text, label):
        raise UsageError(
            f"text, label and pair must be different columns, got text '{text}', label '{label}'"
            f"{f', pair {pair!r}' if pair else ''}"
        )
    for table in tables.files.values():
        for column in (text, label, *([pair] if pair else [])):
            table.check_column(column)
    return text, label, pair


def infer_kind(tables: UserTables) -> str:
    """Return the kind of task of labelled texts, inferred from the labels of the training file.

    Lists, and labels with "|", are several labels. If most labels are not numbers, they are classes; if most are
    numbers, all must be: up to `MAX_NUMERIC_CLASSES` different integers are classes, other numbers are scores.
    """
    if tables.labels is not None:
        return "classification" if tables.labels else "regression"
    _, column, _ = _pick_columns(tables)
    if any(_has_several(row.get(column)) for row in tables.train.read_rows()):
        return "multi-label"
    counts, locations = count_values(tables.train, column)
    if 2 * sum(count for value, count in counts.items() if _is_number(value)) < sum(counts.values()):
        return "classification"
    check_numbers(locations, "most labels are numbers; fix the row, or set the type with --type classification")
    is_classification = len(counts) <= MAX_NUMERIC_CLASSES and all(float(value).is_integer() for value in counts)
    return "classification" if is_classification else "regression"


def _has_several(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and LABEL_SEPARATOR in value)


def count_values(table: TableFile, column: str) -> tuple[Counter[str], dict[str, str]]:
    """Return how often each label occurs, and the location of its first row."""
    locations: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for row in table.read_rows():
        value = read_label(row, column)
        locations.setdefault(value, row.location)
        counts[value] += 1
    if not counts:
        raise data_error(f"{table.path}: no rows below the header")
    return counts, locations


def read_label(row: TableRow, column: str) -> str:
    """Return the label of a row as written in the file; raise DataError if there is none."""
    value = row.get(column)
    if value is None or not str(value).strip():
        raise data_error(f"{row.location}: no label in '{column}'; fill it in, or remove the row")
    if isinstance(value, list | dict):
        raise data_error(f"{row.location}: '{column}' must be a single label, got {str(value)[:40]}")
    return str(value).strip()


def check_numbers(locations: Mapping[str, str], reason: str) -> None:
    """Raise DataError for the first label that is not a finite number."""
    for value, location in locations.items():
        if not is_finite(value):
            raise data_error(f"{location}: label {value[:40]!r} is not a finite number: {reason}")


def _is_number(value: str) -> bool:
    """Return True for numbers, including NaN and infinity."""
    try:
        float(value)
    except ValueError:
        return False
    return True


def is_finite(value: str) -> bool:
    """Return True for a finite number."""
    return _is_number(value) and math.isfinite(float(value))
