"""Readers of published files: rows of TSV, CSV, JSONL and labelled lines, and their conversion to examples; tasks.

    RowReader(make=Fields(text="sentence", label="label", labels=("0", "1")))

reads a TSV or CSV file with a header, or JSONL. An invalid row raises an error with its file and line.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.core.log import join_names
from pretune.tasks.example import Example
from pretune.tasks.table import Jsonl, TableRow, Tsv, data_error, read_lines
from pretune.tasks.task import Reader, SplitFile, Task, Template


def Csv(columns: tuple[str, ...] = ()) -> Tsv:  # noqa: N802 (a constructor)
    """Return the format of comma-separated rows, whose fields may be quoted."""
    return Tsv(columns=columns, delimiter=",", has_quotes=True)


@spec
class LabelledLines:
    """One label, a space, and the text per line."""

    encoding: str | None = None

    def read_rows(self, path: Path) -> Iterator[TableRow]:
        """Yield every line as `label` and `text`."""
        for number, line in read_lines(path, self.encoding):
            if line.strip():
                label, space, text = line.partition(" ")
                if not space:
                    raise DataError(f"{path}:{number}: expected a label, a space and a text, got {line[:40]!r}")
                yield TableRow(f"{path}:{number}", {"label": label, "text": text})


@spec
class Fields:
    """Columns of an example; `labels` are the labels as spelled in the file, in the order of the task's."""

    text: str
    pair: str | None = None
    label: str | None = None
    labels: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    target: str | None = None
    id: str | None = None
    group: str | None = None
    facts: tuple[str, ...] = ()

    def __call__(self, row: TableRow) -> Example:
        return Example(
            text=row.get_text(self.text),
            pair=None if self.pair is None else row.get_text(self.pair),
            label=self._read_label(row),
            target=None if self.target is None else row.get_text(self.target),
            id="" if self.id is None else str(row.get(self.id)),
            group=None if self.group is None else str(row.get(self.group)),
            facts={name: str(row.get(name)) for name in self.facts},
        )

    def _read_label(self, row: TableRow) -> float | None:
        if self.label is None:
            return None
        return read_score(row, self.label, self.scale) if self.scale else read_label_index(row, self.label, self.labels)


Table = Tsv | Jsonl | LabelledLines
_TABLES: Mapping[str, Table] = {".jsonl": Jsonl(), ".tsv": Tsv(), ".csv": Csv()}


@spec
class RowReader:
    """A reader: a function from a row to an example (None: the row is skipped), and a table.

    The default table is that of the file's extension.
    """

    make: Callable[[TableRow], Example | None]
    table: Table | None = None

    def __call__(self, path: Path) -> Iterator[Example]:
        table = self.table or next(_TABLES[suffix] for suffix in reversed(path.suffixes) if suffix in _TABLES)
        for row in table.read_rows(path):
            example = self.make(row)
            if example is not None:
                yield example


Splits = Mapping[str, tuple[SplitFile, ...]]


def list_files(reader: Reader | Mapping[str, Reader], **splits: str) -> Splits:
    """Return the files of each split, best first, from their path, number of rows, and "part" for a part of it.

    Files of several formats have a reader by pattern: the first that fits the path.

    >>> list_files(print, train="train.tsv | train_subset.tsv 9888 part")["train"][1]
    SplitFile(path='train_subset.tsv', reader=<built-in function print>, rows=9888, is_partial=True)
    """

    def parse(file: str) -> SplitFile:
        path, *facts = file.split()
        rows = int(facts[0]) if facts else None
        patterns = {"*": reader} if callable(reader) else reader
        read = next(patterns[pattern] for pattern in patterns if fnmatch(path, pattern))
        return SplitFile(path, read, rows=rows, is_partial="part" in facts[1:])

    return {split: tuple(map(parse, files.split("|"))) for split, files in splits.items()}


def build_task(
    name: str,
    source: str,
    splits: Splits,
    *,
    labels: tuple[str, ...] = (),
    metrics: tuple[str, ...] = ("accuracy",),
    folders: tuple[str, ...] = (),
    scale: tuple[float, float] | None = None,
    group_field: Literal["text", "pair", "group"] | None = None,
) -> Task:
    """Return a task with a text-to-text template: from `source` to its labels, its score, or else to the target.

    With labels and one field in its source it is a classification of texts, with several one of pairs.
    """
    kind = "classification" if source.count("{") == 1 else "pair"
    target = "" if labels else "{score}" if scale else "{target}"
    return Task(
        name=name,
        kind=kind if labels else "regression" if scale else "generation",
        metrics=metrics,
        labels=labels,
        scale=scale,
        folders=folders,
        splits=splits,
        template=Template(source=source, targets=labels, target=target),
        group_field=group_field,
    )


def read_label_index(row: TableRow, column: str, labels: tuple[str, ...]) -> int:
    """Return the index of a row's label."""
    value = row.get(column)
    if str(value) not in labels:
        raise data_error(
            f"{row.location}: label in '{column}' must be one of {join_names(labels)}, got {str(value)[:40]!r}"
        )
    return labels.index(str(value))


def read_score(row: TableRow, column: str, scale: tuple[float, float]) -> float:
    """Return the score of a row, which must be within the scale."""
    value = row.get(column)
    low, high = scale
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise DataError(
            f"{row.location}: score in '{column}' must be from {low:g} to {high:g}, got {str(value)[:40]!r}"
        )
    return number
