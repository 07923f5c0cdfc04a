"""Readers of users' tables: which columns hold the text, the label and the second text, and what their cells mean.

    tables = UserTables(files={"train": open_table("train.csv")}, name="own")
    pick_text_columns(tables)              # ('review', 'stars', None)

Task types build their tasks from these (`Inputs.build_user_task`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.tasks.example import Example
from pretune.tasks.table import (
    BlankRows,
    TableFile,
    TableRow,
    data_error,
    find_pair_columns,
    is_number,
    open_table,
    pick_column,
)
from pretune.tasks.task import Reader, SplitFile, Task

MAX_NUMERIC_CLASSES = 20
"""Maximum number of different integers that are treated as classes, not scores."""
MESSAGES = "messages"
CHAT_FORMS = ((MESSAGES, None, MESSAGES), ("instruction", "input", "output"), ("prompt", None, "completion"))
"""Columns of chats: of the text, of a second text that may be absent or blank, and of the answer, for each form."""
ANSWER_PAIR = ("chosen", "rejected")
PROMPT_FORMS = (("prompt", None), ("instruction", "input"), ("question", None))
"""Columns of the prompt of two answers, and of a second text that may be absent or blank."""
LABEL_SEPARATOR = "|"
"""Separator of several labels in a cell."""


def find_chat_form(columns: Iterable[str]) -> dict[str, str | None] | None:
    """Return the columns of a known form by their role in a reader, or None.

    >>> find_chat_form(["id", "Instruction", "output"])
    {'text': 'Instruction', 'pair': None, 'label': 'output'}
    """
    names = {column.strip().lower(): column for column in columns}
    for text, pair, label in CHAT_FORMS:
        if text in names and label in names:
            return {"text": names[text], "pair": names.get(pair or ""), "label": names[label]}
    return None


def find_preference_form(columns: Iterable[str]) -> tuple[str, str | None, str, str] | None:
    """Return the columns of a prompt, of its second text, and of the better and the worse answer, or None.

    Without a prompt the answers are whole chats, and its column is that of the better ones.
    """
    names = {column.strip().lower(): column for column in columns}
    if not names.keys() >= {*ANSWER_PAIR}:
        return None
    better, worse = ANSWER_PAIR
    text, pair = next((form for form in PROMPT_FORMS if form[0] in names), (better, None))
    return names[text], names.get(pair or ""), names[better], names[worse]


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
    reward: str | None = None  # metric of sampled answers

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

    def build_task(self, kind: str, reader: Reader, metrics: tuple[str, ...], labels: tuple[str, ...] = ()) -> Task:
        """Return the task of these files; every row is read once, so that errors are found now."""
        notes: list[str] = []
        for _ in self.read(reader, notes):
            pass
        # Absolute, so that joining them to any data directory returns them unchanged.
        splits = {split: (SplitFile(str(table.path.absolute()), reader),) for split, table in self.files.items()}
        return Task(name=self.name, kind=kind, metrics=metrics, splits=splits, labels=labels, notes=tuple(notes))


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


def is_finite(value: str) -> bool:
    """Return True for a finite number."""
    return is_number(value) and math.isfinite(float(value))


def get_columns(task: Task) -> tuple[str | None, str | None]:
    """Return the columns of the text and of the second text, if the task reads a user's tables."""
    reader = next((file.reader for files in task.splits.values() for file in files), None)
    return reader.input_columns if isinstance(reader, TableReader) else (None, None)
