"""Users' files of a task: the reader of a table's columns, and the task that they make."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table import TableFile, TableRow, open_table, pick_column
from pretune.tasks.task import Reader, SplitFile, Task


@spec
class TableReader:
    """Reader of a user's table: the columns of the text, of the label, and of a second text."""

    text: str
    label: str
    pair: str | None = None

    def __call__(self, path: Path) -> Iterator[Example]:
        for row in open_table(path, [self.text, self.label, *([self.pair] if self.pair else [])]).read_rows():
            yield self.parse_row(row)

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

    def read(self, reader: Reader) -> Iterator[Example]:
        """Yield the examples of all files, so that errors are found now; raise DataError for a file without rows."""
        for table in self.files.values():
            count = 0
            for count, example in enumerate(reader(table.path), start=1):  # noqa: B007 (the last value counts)
                yield example
            if not count:
                raise DataError(f"{table.path}: no rows below the header")

    def build_task(self, kind: str, reader: Reader, **fields: Any) -> Task:
        """Return the task of these files."""
        # Absolute, so that joining them to any data directory returns them unchanged.
        splits = {split: (SplitFile(str(table.path.absolute()), reader),) for split, table in self.files.items()}
        return Task(name=self.name, kind=kind, splits=splits, **fields)


def get_columns(task: Task) -> tuple[str | None, str | None]:
    """Return the columns of the text and of the second text, if the task reads a user's tables."""
    reader = next((file.reader for files in task.splits.values() for file in files), None)
    return reader.input_columns if isinstance(reader, TableReader) else (None, None)
