"""Tasks from users' own files: their type, columns and labels.

    task = build_user_task({"train": "train.csv", "dev": "dev.csv"}, text="review", label="stars")
    task.kind, task.labels          # 'classification', ('1', '2', '3', '4', '5')

`type` sets the type. Without it CoNLL files are tagging, and otherwise the labels of the training file decide
(`infer_kind`). Rows with a blank cell that their example needs are skipped, with a note (`task.notes`). The labels are
those of the training data: a label that only dev or test has is an error, and so is a single class.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError, suggest
from pretune.core.log import join_names
from pretune.tasks.example import Example
from pretune.tasks.table import BlankRows, TableFile, TableRow, data_error, find_pair_columns, open_table, pick_column
from pretune.tasks.task import Reader, SplitFile, Task
from pretune.tasks.types import TASK_TYPES, TYPE_OPTIONS, get_option

MAX_NUMERIC_CLASSES = 20
"""Maximum number of different integers that are treated as classes, not scores."""
LABEL_SEPARATOR = "|"
"""Separator of several labels in a cell."""


@spec
class TableReader:
    """Reader of a user's table: the columns of the text, of the label, and of a second text."""

    text: str
    label: str
    pair: str | None = None

    def __call__(self, path: Path) -> Iterator[Example]:
        return self.read(path, BlankRows())

    def read(self, path: Path, blanks: BlankRows) -> Iterator[Example]:
        """Yield the examples of a file; `blanks` counts the skipped rows."""
        table = open_table(path, [self.text, self.label, *([self.pair] if self.pair else [])])
        return blanks.parse(table.read_rows(), self.parse_row)

    def parse_row(self, row: TableRow) -> Example:
        """Return the example of a row."""
        raise NotImplementedError

    @property
    def input_columns(self) -> tuple[str | None, str | None]:
        """Columns of the text and of the second text, in new inputs too."""
        return self.text, self.pair

    def describe_columns(self, columns: Iterable[str]) -> str:
        """Describe the role of each column."""
        second = f", second text '{self.pair}'" if self.pair else ""
        return f"columns: text '{self.text}'{second}, label '{self.label}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTables:
    """A user's files by split, the columns that the user named, and the labels of a model to be evaluated."""

    files: Mapping[str, TableFile]
    name: str
    text: str | None = None
    label: str | None = None
    pair: str | None = None
    labels: tuple[str, ...] | None = None
    has_pair: bool | None = None  # None: two texts if their columns have known names

    @property
    def train(self) -> TableFile:
        """The training file, or the only one."""
        return self.files.get("train") or next(iter(self.files.values()))

    def pick_columns(self, meanings: Mapping[str, str]) -> dict[str, str]:
        """Return the column of each role: the one that the user named, else by the names of its meaning."""
        return {role: pick_column(self.train, getattr(self, role), meaning, role) for role, meaning in meanings.items()}

    def read(self, reader: Reader, notes: list[str] | None = None) -> Iterator[Example]:
        """Yield the examples of all files, and add notes on skipped rows; raise DataError for a file without rows."""
        for table in self.files.values():
            count, blanks = 0, BlankRows(strict=table.strict)
            examples = reader.read(table.path, blanks) if isinstance(reader, TableReader) else reader(table.path)
            for count, example in enumerate(examples, start=1):  # noqa: B007 (the last value counts)
                yield example
            blanks.check_rows(table.path, count)
            if blanks.count and notes is not None:
                notes.append(str(blanks))

    def build_task(self, kind: str, reader: Reader, **fields: Any) -> Task:
        """Return the task of these files; every row is read once, so that errors are found now."""
        notes: list[str] = []
        for _ in self.read(reader, notes):
            pass
        # Absolute, so that joining them to any data directory returns them unchanged.
        splits = {split: (SplitFile(str(table.path.absolute()), reader),) for split, table in self.files.items()}
        return Task(name=self.name, kind=kind, splits=splits, notes=tuple(notes), **fields)


def build_user_task(
    files: Mapping[str, str | os.PathLike[str]],
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
    name: str = "own",
    labels: tuple[str, ...] | None = None,
    type: str | None = None,
    has_pair: bool | None = None,
    strict: bool = False,
) -> Task:
    """Build a task from files by split, with at least one for train; every row is checked.

    With `labels`, those of a model to be evaluated (empty for scores), no training file is needed. `type` is one of
    `TYPE_OPTIONS`, except embedding. `has_pair` sets whether two texts are read; None: two if no text column is named
    and the columns are one of `PAIR_COLUMNS`. Rows with a blank cell are skipped, or with `strict` a DataError.
    """
    options = [option for option in TYPE_OPTIONS if option != "embedding"]
    if type is not None and type not in options:
        raise UsageError(f"unknown type '{type[:40]}'{suggest(type, options)} (allowed: {', '.join(options)})")
    if "train" not in files and labels is None:
        raise UsageError(f"a training file is needed (train), got {', '.join(files) or 'none'}")
    kind = next((kind for kind in TASK_TYPES if type is not None and get_option(kind) == type), None)
    open_file = open_table if kind is None else TASK_TYPES.get(kind).open_file
    column_names = [column for column in (text, label, pair) if column]
    tables = {split: replace(open_file(Path(path), column_names), strict=strict) for split, path in files.items()}
    user_tables = UserTables(
        files=tables, name=name, text=text, label=label, pair=pair, labels=labels, has_pair=has_pair
    )
    forms = {table.form == "conll" for table in tables.values()}
    if len(forms) > 1:
        raise DataError(
            f"{user_tables.train.path}: CoNLL files and tables cannot be mixed; use one format for all splits"
        )
    if kind is None:
        kind = "tagging" if forms == {True} else infer_kind(user_tables)
    type_class = TASK_TYPES.get(kind)
    if forms == {True} and not type_class.reads_conll:
        readers = join_names([name for name in TASK_TYPES if TASK_TYPES.get(name).reads_conll])
        raise UsageError(f"{user_tables.train.path}: a CoNLL file is for {readers}, got type '{type}'; use a table")
    if pair is not None and not type_class.allows_pair:
        raise UsageError(f"--pair '{pair}': a task of type {type} has one text; remove --pair")
    return type_class.build_user_task(user_tables)


def pick_text_columns(tables: UserTables) -> tuple[str, str, str | None]:
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
    text, column, pair = pick_text_columns(tables)
    if any(_has_several(row.values.get(column)) for row in tables.train.read_rows()):
        return "multi-label"
    counts, locations = count_values(tables.train, column, (text, pair))
    if 2 * sum(count for value, count in counts.items() if _is_number(value)) < sum(counts.values()):
        return "classification"
    check_numbers(locations, "most labels are numbers; fix the row, or set the type with --type classification")
    is_classification = len(counts) <= MAX_NUMERIC_CLASSES and all(float(value).is_integer() for value in counts)
    return "classification" if is_classification else "regression"


def _has_several(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and LABEL_SEPARATOR in value)


def count_values(table: TableFile, column: str, texts: Sequence[str | None]) -> tuple[Counter[str], dict[str, str]]:
    """Return how often each label occurs in rows with all `texts`, and the location of its first row."""

    def parse(row: TableRow) -> tuple[str, str]:
        check_filled(row, texts)
        return read_label(row, column), row.location

    locations: dict[str, str] = {}
    counts: Counter[str] = Counter()
    blanks = BlankRows(strict=table.strict)
    for value, location in blanks.parse(table.read_rows(), parse):
        locations.setdefault(value, location)
        counts[value] += 1
    blanks.check_rows(table.path, len(counts))
    return counts, locations


def check_filled(row: TableRow, columns: Sequence[str | None]) -> None:
    """Raise BlankCellError if one of these columns is blank; None is no column."""
    for column in columns:
        if column:
            row.require(column)


def read_label(row: TableRow, column: str) -> str:
    """Return the label of a row as written in the file; raise DataError if there is none."""
    value = row.require(column)
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


def get_columns(task: Task) -> tuple[str | None, str | None]:
    """Return the columns of the text and of the second text, if the task reads a user's tables."""
    reader = next((file.reader for files in task.splits.values() for file in files), None)
    return reader.input_columns if isinstance(reader, TableReader) else (None, None)
