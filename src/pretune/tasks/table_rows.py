"""Rows of the published tables (TSV, CSV, JSONL, labelled lines), and the examples they make.

    Rows(table=Tsv(), make=Fields(text="sentence", label="label", labels=("0", "1")))

reads a TSV file with a header. A row that does not fit stops the reading with its file and line.
"""

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pretune.core.config import spec
from pretune.core.errors import DataError, suggest
from pretune.core.format import join_names
from pretune.tasks.example import Example
from pretune.text.corpora.decoding import HEAD_BYTES, decode, detect_encoding
from pretune.text.corpora.splitting import split_documents
from pretune.text.corpora.streams import detect_compression, read_chunks
from pretune.text.corpora.tables import iter_delimited_rows, iter_jsonl_rows


class TableRow(NamedTuple):
    """One row: where it stands ("file:line"), and its values by column."""

    location: str
    values: Mapping[str, Any]

    def get(self, column: str) -> Any:
        """A value; an error that names the columns there are when this one is not among them."""
        if column not in self.values:
            known = ", ".join(self.values)[:200]
            raise data_error(f"{self.location}: no field '{column}'{suggest(column, self.values)} (it has {known})")
        return self.values[column]

    def get_text(self, column: str) -> str:
        """A value that has to be text, and not blank."""
        value = self.get(column)
        if not isinstance(value, str) or not value.strip():
            raise data_error(
                f"{self.location}: field '{column}' holds {str(value)[:40]!r}; text was expected: fill it in, or leave "
                "the row out"
            )
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as broken:  # JSON can escape half a character
                raise data_error(
                    f"{self.location}: field '{column}': character {broken.start} is half of a surrogate pair; mend it"
                ) from None
        return value


def data_error(message: str) -> DataError:
    """An error of one line, whatever the names of columns that it quotes hold."""
    return DataError(" ".join(message.split()))


def read_text(path: Path, encoding: str | None = None) -> Iterator[str]:
    """The text of a file in chunks, decompressed, with "\\n" for every newline; its encoding is found unless given."""
    name = os.fspath(path)
    stream = read_chunks(name, name, detect_compression(b"".join(read_chunks(name, name, "", 0, 16))))
    if encoding is not None:
        yield b"".join(stream).decode(encoding)
        return
    first = next(stream, b"")
    found = detect_encoding(first[:HEAD_BYTES])
    if found is None:
        raise DataError(f"{name}: a binary file; text in UTF-8, UTF-16 or UTF-32 is expected")
    yield from decode(itertools.chain([first], stream), found[0], name, skip=found[1])


def read_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """(number, text) of every line."""
    for text, number, _ in split_documents(read_text(path, encoding), "\n"):
        yield number, text


@spec
class Tsv:
    """Tab-separated rows; `columns` names them where there is no header. Quotes are characters like others."""

    columns: tuple[str, ...] = ()
    delimiter: str = "\t"
    quoted: bool = False
    more: bool = False  # a row may have further columns, which are not read

    def read_rows(self, path: Path) -> Iterator[TableRow]:
        """Every row below the header."""
        name = os.fspath(path)
        rows = iter_delimited_rows(read_text(path), self.delimiter, self.quoted, name)
        header = self.columns or tuple(next(rows, (0, []))[1])
        for number, cells in rows:
            if len(cells) < len(header) or (len(cells) > len(header) and not self.more):
                raise DataError(f"{name}:{number}: the row has {len(cells)} columns, {len(header)} are expected")
            yield TableRow(f"{name}:{number}", dict(zip(header, cells, strict=False)))


def Csv(columns: tuple[str, ...] = ()) -> Tsv:  # noqa: N802 (it makes a value, and stands where a class would)
    """Comma-separated rows, whose fields may stand in quotes."""
    return Tsv(columns=columns, delimiter=",", quoted=True)


@spec
class Jsonl:
    """One JSON object per line."""

    def read_rows(self, path: Path) -> Iterator[TableRow]:
        """Every object."""
        name = os.fspath(path)
        for number, values in iter_jsonl_rows(read_text(path), name):
            yield TableRow(f"{name}:{number}", values)


@spec
class LabelledLines:
    """A label, a space, and the text, on each line."""

    encoding: str | None = None

    def read_rows(self, path: Path) -> Iterator[TableRow]:
        """Every line, as `label` and `get_text`."""
        for number, line in read_lines(path, self.encoding):
            if line.strip():
                label, space, text = line.partition(" ")
                if not space:
                    raise DataError(f"{path}:{number}: expected a label, a space and a text, found {line[:40]!r}")
                yield TableRow(f"{path}:{number}", {"label": label, "text": text})


@spec
class Fields:
    """Which columns make an example; `labels` are the labels as the file writes them, in the order of the task's."""

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
        label: int | float | None = None
        if self.label is not None:
            label = (
                read_score(row, self.label, self.scale)
                if self.scale
                else read_label_index(row, self.label, self.labels)
            )
        return Example(
            text=row.get_text(self.text),
            pair=None if self.pair is None else row.get_text(self.pair),
            label=label,
            target=None if self.target is None else row.get_text(self.target),
            id="" if self.id is None else str(row.get(self.id)),
            group=None if self.group is None else str(row.get(self.group)),
            facts={name: str(row.get(name)) for name in self.facts},
        )


@spec
class RowReader:
    """A reader: a table, and what makes an example of a row (None: the row is left out)."""

    table: Tsv | Jsonl | LabelledLines
    make: Callable[[TableRow], Example | None]

    def __call__(self, path: Path) -> Iterator[Example]:
        for row in self.table.read_rows(path):
            made = self.make(row)
            if made is not None:
                yield made


def read_label_index(row: TableRow, column: str, labels: tuple[str, ...]) -> int:
    """Which of the labels a row has."""
    value = row.get(column)
    if str(value) not in labels:
        raise data_error(f"{row.location}: label {str(value)[:40]!r} in '{column}' is not one of {join_names(labels)}")
    return labels.index(str(value))


def read_score(row: TableRow, column: str, scale: tuple[float, float]) -> float:
    """The score of a row, within its scale."""
    value = row.get(column)
    low, high = scale
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise DataError(
            f"{row.location}: score {str(value)[:40]!r} in '{column}' is not a number from {low:g} to {high:g}"
        )
    return number
