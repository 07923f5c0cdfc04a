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
from pretune.core.counted import join_names
from pretune.core.errors import DataError, nearest
from pretune.tasks.example import Example
from pretune.text.corpora.decoding import HEAD, decode, encoding_of
from pretune.text.corpora.splitting import split
from pretune.text.corpora.streams import chunks, compression_of
from pretune.text.corpora.tables import delimited_rows, jsonl_rows


class Row(NamedTuple):
    """One row: where it stands ("file:line"), and its values by column."""

    where: str
    values: Mapping[str, Any]

    def get(self, column: str) -> Any:
        """A value; an error that names the columns there are when this one is not among them."""
        if column not in self.values:
            known = ", ".join(self.values)[:200]
            raise fault(f"{self.where}: no field '{column}'{nearest(column, self.values)} (it has {known})")
        return self.values[column]

    def text(self, column: str) -> str:
        """A value that has to be text, and not blank."""
        value = self.get(column)
        if not isinstance(value, str) or not value.strip():
            raise fault(
                f"{self.where}: field '{column}' holds {str(value)[:40]!r}; text was expected: fill it in, or leave "
                "the row out"
            )
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as broken:  # JSON can escape half a character
                raise fault(
                    f"{self.where}: field '{column}': character {broken.start} is half of a surrogate pair; mend it"
                ) from None
        return value


def fault(message: str) -> DataError:
    """An error of one line, whatever the names of columns that it quotes hold."""
    return DataError(" ".join(message.split()))


def text_of(path: Path, encoding: str | None = None) -> Iterator[str]:
    """The text of a file in chunks, decompressed, with "\\n" for every newline; its encoding is found unless given."""
    name = os.fspath(path)
    stream = chunks(name, name, compression_of(b"".join(chunks(name, name, "", 0, 16))))
    if encoding is not None:
        yield b"".join(stream).decode(encoding)
        return
    first = next(stream, b"")
    found = encoding_of(first[:HEAD])
    if found is None:
        raise DataError(f"{name}: a binary file; text in UTF-8, UTF-16 or UTF-32 is expected")
    yield from decode(itertools.chain([first], stream), found[0], name, skip=found[1])


def lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """(number, text) of every line."""
    for text, number, _ in split(text_of(path, encoding), "\n"):
        yield number, text


@spec
class Tsv:
    """Tab-separated rows; `columns` names them where there is no header. Quotes are characters like others."""

    columns: tuple[str, ...] = ()
    delimiter: str = "\t"
    quoted: bool = False
    more: bool = False  # a row may have further columns, which are not read

    def rows(self, path: Path) -> Iterator[Row]:
        """Every row below the header."""
        name = os.fspath(path)
        rows = delimited_rows(text_of(path), self.delimiter, self.quoted, name)
        header = self.columns or tuple(next(rows, (0, []))[1])
        for number, cells in rows:
            if len(cells) < len(header) or (len(cells) > len(header) and not self.more):
                raise DataError(f"{name}:{number}: the row has {len(cells)} columns, {len(header)} are expected")
            yield Row(f"{name}:{number}", dict(zip(header, cells, strict=False)))


def Csv(columns: tuple[str, ...] = ()) -> Tsv:  # noqa: N802 (it makes a value, and stands where a class would)
    """Comma-separated rows, whose fields may stand in quotes."""
    return Tsv(columns=columns, delimiter=",", quoted=True)


@spec
class Jsonl:
    """One JSON object per line."""

    def rows(self, path: Path) -> Iterator[Row]:
        """Every object."""
        name = os.fspath(path)
        for number, values in jsonl_rows(text_of(path), name):
            yield Row(f"{name}:{number}", values)


@spec
class Labelled:
    """A label, a space, and the text, on each line."""

    encoding: str | None = None

    def rows(self, path: Path) -> Iterator[Row]:
        """Every line, as `label` and `text`."""
        for number, line in lines(path, self.encoding):
            if line.strip():
                label, space, text = line.partition(" ")
                if not space:
                    raise DataError(f"{path}:{number}: expected a label, a space and a text, found {line[:40]!r}")
                yield Row(f"{path}:{number}", {"label": label, "text": text})


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

    def __call__(self, row: Row) -> Example:
        label: int | float | None = None
        if self.label is not None:
            label = score(row, self.label, self.scale) if self.scale else index(row, self.label, self.labels)
        return Example(
            text=row.text(self.text),
            pair=None if self.pair is None else row.text(self.pair),
            label=label,
            target=None if self.target is None else row.text(self.target),
            id="" if self.id is None else str(row.get(self.id)),
            group=None if self.group is None else str(row.get(self.group)),
            facts={name: str(row.get(name)) for name in self.facts},
        )


@spec
class Rows:
    """A reader: a table, and what makes an example of a row (None: the row is left out)."""

    table: Tsv | Jsonl | Labelled
    make: Callable[[Row], Example | None]

    def __call__(self, path: Path) -> Iterator[Example]:
        for row in self.table.rows(path):
            made = self.make(row)
            if made is not None:
                yield made


def index(row: Row, column: str, labels: tuple[str, ...]) -> int:
    """Which of the labels a row has."""
    value = row.get(column)
    if str(value) not in labels:
        raise fault(f"{row.where}: label {str(value)[:40]!r} in '{column}' is not one of {join_names(labels)}")
    return labels.index(str(value))


def score(row: Row, column: str, scale: tuple[float, float]) -> float:
    """The score of a row, within its scale."""
    value = row.get(column)
    low, high = scale
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise DataError(
            f"{row.where}: score {str(value)[:40]!r} in '{column}' is not a number from {low:g} to {high:g}"
        )
    return number
