"""The user's own files: CSV, TSV, JSONL and CoNLL, whose delimiter, header and kinds are found out and shown.

    table = open_table("reviews.csv")
    print(table)                    # reviews.csv: CSV with a header, delimiter ',', columns text, stars
    task = own_task({"train": "reviews.csv"}, text="text", label="stars")
    task.kind, task.labels          # 'classification', ('1', '2', '3', '4', '5')

Files are decoded as corpora are: UTF-8, or UTF-16/32 by their first bytes; compressed ones are read as they are.
"""

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

from pretune.core.errors import DataError, explain_missing, suggest
from pretune.tasks.table_rows import Jsonl, TableRow, data_error, read_text
from pretune.text.corpora.tables import UnclosedQuoteError, iter_delimited_rows

_SAMPLE_ROWS = 50
_MAX_NAME_LENGTH = 100
_SINGLE_COLUMN = "\x1f"
"""The delimiter of a table of one column: a character that texts do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """How a file is written: its form, its columns, and for CSV and TSV delimiter, quotes and header."""

    path: Path
    form: Literal["delimited", "jsonl", "conll"]
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    has_quotes: bool = False
    has_header: bool = True

    def __str__(self) -> str:
        if self.form == "conll":
            return f"{self.path}: CoNLL, a word and its tag a line"
        columns = ", ".join(self.columns)
        if self.form == "jsonl":
            return f"{self.path}: JSONL, fields {columns}"
        header = "with a header" if self.has_header else "without a header"
        quotes = "quotes enclose fields" if self.has_quotes else "quotes are plain characters"
        if self.delimiter == _SINGLE_COLUMN:
            return f"{self.path}: a table {header}, {quotes}, the column {columns} alone"
        return f"{self.path}: a table {header}, delimiter {self.delimiter!r}, {quotes}, columns {columns}"

    def read_rows(self) -> Iterator[TableRow]:
        """Every row; one with too many or too few columns is an error with its number."""
        if self.form == "jsonl":
            yield from Jsonl().read_rows(self.path)
            return
        name = os.fspath(self.path)
        rows = iter_delimited_rows(read_text(self.path), self.delimiter, self.has_quotes, name)
        for number, cells in itertools.islice(rows, int(self.has_header), None):
            if len(cells) != len(self.columns):
                raise DataError(f"{name}:{number}: the row has {len(cells)} columns, {len(self.columns)} are expected")
            yield TableRow(f"{name}:{number}", dict(zip(self.columns, cells, strict=True)))

    def check_column(self, column: str) -> str:
        """A column that has to be there."""
        if column not in self.columns:
            raise data_error(
                f"{self.path}: no column '{column[:60]}'{suggest(column, self.columns)} "
                f"(it has {', '.join(self.columns)[:200]})"
            )
        return column


def pick_column(table: TableFile, column_name: str | None, defaults: Sequence[str], role: str) -> str:
    """The column of a role: the named one, or the first of the usual ones that the table has."""
    if column_name is not None:
        return table.check_column(column_name)
    columns = {column.strip().lower(): column for column in reversed(table.columns)}
    for column in defaults:
        if column in columns:
            return columns[column]
    number = f"; where that is no header, by its number, --{role} 1" if table.form == "delimited" else ""
    raise data_error(
        f"{table.path}: which column is the {role}? Name it with --{role} ({', '.join(table.columns)[:200]}){number}; "
        f"for `pretune evaluate` with --column {role}=NAME"
    )


def open_table(
    path: str | os.PathLike[str], column_names: Sequence[str] = (), *, allow_single_column: bool = False
) -> TableFile:
    """How a file is written; columns that are asked for by name help to tell a header from a row.

    Without a header the columns are called 1, 2, 3, … Where a column may stand `alone`, commas in it divide nothing.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: {explain_missing(path)}")
    ending = _get_extension(path)
    first = next((line for line in "".join(itertools.islice(read_text(path), 1)).split("\n") if line.strip()), "")
    if not first:
        raise DataError(f"{path}: the file is empty")
    if ending in (".jsonl", ".ndjson", ".json") or _is_object(first):
        fields = {key: None for row in itertools.islice(Jsonl().read_rows(path), _SAMPLE_ROWS) for key in row.values}
        return TableFile(path=path, form="jsonl", columns=tuple(fields))
    if ending in (".conll", ".conllu", ".iob", ".bio") or (ending in ("", ".txt") and _is_conll(path)):
        return TableFile(path=path, form="conll")
    return _detect_delimiter(path, ending, column_names, allow_single_column)


def _detect_delimiter(path: Path, ending: str, column_names: Sequence[str], allow_single_column: bool) -> TableFile:
    """The delimiter that gives equally many columns, more than one, in the first rows; TSV is tried without quotes."""
    tries = [("\t", False), ("\t", True), (",", True), (";", True), ("|", True)]
    if ending == ".csv":
        tries = [(",", True), (";", True), ("\t", True), ("|", True), (",", False)]
    best: tuple[tuple[int, int, int], str, bool, list[str]] | None = None
    unclosed: dict[str, UnclosedQuoteError] = {}
    for place, (delimiter, quoted) in enumerate(tries):
        if not quoted and delimiter in unclosed:
            continue  # without quotes the row would be read as it is, with a quote in its text
        rows, broken = _read_sample(path, delimiter, quoted)
        if broken is not None and delimiter != "\t":
            unclosed[delimiter] = broken
        if not rows or len(rows[0]) < 2:
            continue
        even = sum(len(row) == len(rows[0]) for row in rows)
        odd = any(cell.startswith('"') and cell.endswith('"') and len(cell) > 1 for row in rows for cell in row)
        rank = (2 * even > len(rows), even * 100 // len(rows) - 50 * odd, -place)
        if best is None or rank > best[0]:
            best = (rank, delimiter, quoted, rows[0])
    if best is None and allow_single_column:
        rows, broken = _read_sample(path, _SINGLE_COLUMN, True)
        if broken is not None and not rows:
            raise broken
        best = ((0, 0, 0), _SINGLE_COLUMN, True, rows[0])
    if best is None and unclosed:
        raise next(iter(unclosed.values()))
    if best is None:
        raise DataError(
            f"{path}: no table: no delimiter (tab, comma, semicolon, |) gives two columns or more in a row; a text and "
            "its label are needed"
        )
    _, delimiter, quoted, first = best
    header = _is_header(first, column_names)
    if header and len({*first}) < len(first):
        twice = next(cell for cell in first if first.count(cell) > 1)
        raise data_error(f"{path}:1: the header has the column '{twice[:60]}' twice; rename one")
    columns = tuple(first) if header else tuple(str(at) for at in range(1, len(first) + 1))
    return TableFile(
        path=path, form="delimited", columns=columns, delimiter=delimiter, has_quotes=quoted, has_header=header
    )


def _read_sample(path: Path, delimiter: str, has_quotes: bool) -> tuple[list[list[str]], UnclosedQuoteError | None]:
    """The first rows, up to one that is damaged; and the fault, where that is a quote that is never closed."""
    rows: list[list[str]] = []
    try:
        for _, cells in itertools.islice(
            iter_delimited_rows(read_text(path), delimiter, has_quotes, str(path)), _SAMPLE_ROWS
        ):
            rows.append(cells)
    except UnclosedQuoteError as unclosed:
        return rows, unclosed
    except DataError as broken:
        if "bad row" not in str(broken):
            raise
    return rows, None


def _is_header(cells: Sequence[str], column_names: Sequence[str]) -> bool:
    """Not when columns are asked for by number; when one that is asked for is in it, or all cells look like names."""
    if column_names and all(name.isdecimal() for name in column_names):
        return False
    if any(name in cells for name in column_names):
        return True
    return all(cell.strip() and len(cell) <= _MAX_NAME_LENGTH and not _is_number(cell) for cell in cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_conll(path: Path) -> bool:
    """Blank lines between blocks of lines with equally many cells, two or more."""
    lines = "".join(itertools.islice(read_text(path), 1)).split("\n")[:200]
    widths = {len(line.split()) for line in lines[:-1] if line.strip()}
    return len(widths) == 1 and widths.pop() >= 2 and any(not line.strip() for line in lines[:-1])


def _get_extension(path: Path) -> str:
    name = PurePath(path.name.lower())
    return PurePath(name.stem).suffix if name.suffix in (".gz", ".xz", ".bz2", ".zst") else name.suffix
