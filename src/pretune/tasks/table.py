"""Tables: users' CSV, TSV, JSONL and CoNLL files, with detection of delimiter, quoting, header and columns.

    table = open_table("reviews.csv")
    print(table)         # reviews.csv: a table with a header, delimiter ',', …, columns text, stars
    pick_column(table, None, "label", "label")     # 'stars'

Files are decoded like corpora: UTF-8, or UTF-16/32 by their first bytes; compressed files are decompressed. An invalid
row raises an error with its file and line. A cell is blank if it is empty, white space, null, or missing from a line of
JSON; a blank cell that an example needs raises a `BlankCellError`, and `BlankRows` skips and counts such rows.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pretune.core import log
from pretune.core.config import check_path, spec
from pretune.core.errors import DataError, explain_missing, suggest
from pretune.core.log import format_count
from pretune.text.corpora.streams import HEAD_BYTES, decode, detect_compression, detect_encoding, read_chunks
from pretune.text.corpora.tables import (
    SINGLE_COLUMN,
    UnclosedQuoteError,
    iter_delimited_rows,
    iter_json_rows,
    split_documents,
)

T = TypeVar("T")

_COLUMNS = """
    text: text sentence sentence1 premise question question1 review content document
    label: label labels class category sentiment target gold_label score stars
    words: words tokens
    tags: tags ner_tags pos_tags labels
    relations: relations deprels deprel tags labels
    document words: sentences words tokens
    clusters: clusters coref coreference
    question: question query
    passage: context passage document text
    answer: answer answers
    stem: text question premise context ctx sentence prompt
    correct choice: label answer answerkey correct target key
    problem: question problem prompt instruction query text
    source: text source input document article question sentence
    target: target summary output answer highlights translation label
    anchor: anchor query sentence1 text1 premise question1 text_a question text sentence_a
    positive: positive document sentence2 text2 hypothesis question2 text_b answer pair sentence_b
    negative: negative hard_negative text3 sentence3
    score: score similarity relatedness_score
    class: label gold_label class
    id: id
"""
COLUMNS = {
    meaning: tuple(names.split())
    for meaning, names in (line.strip().split(": ") for line in _COLUMNS.strip().splitlines())
}
"""Names of columns by their meaning, in order of preference; case and surrounding blanks are ignored."""
PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "context"),
)
"""Columns of a pair of texts: GLUE's and SuperGLUE's names, and other common ones."""
COMPRESSION_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
_SAMPLE_ROWS = 50
_MAX_NAME_LENGTH = 100


class BlankCellError(DataError):
    """A row without a value that an example needs: the location of the row, and the column."""

    def __init__(self, location: str, column: str) -> None:
        super().__init__(" ".join(f"{location}: '{column}' is blank; fill it in, or remove the row".split()))
        self.location, self.column = location, " ".join(column.split())


def is_blank(value: object) -> bool:
    """Return True for a cell without a value.

    >>> [is_blank(value) for value in (None, " ", [], 0, "a")]
    [True, True, True, False, False]
    """
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


@dataclass(slots=True)
class BlankRows:
    """Rows of a table that are skipped, since a cell that they need is blank: their number, and the first.

    With `strict` the first one raises its error.
    """

    strict: bool = False
    count: int = 0
    first: BlankCellError | None = None

    def __str__(self) -> str:
        return f"{format_count(self.count, 'rows')} with a blank cell skipped, {self._locate()}"

    def _locate(self) -> str:
        return "" if self.first is None else f"the first at {self.first.location}, '{self.first.column}'"

    def parse(self, rows: "Iterable[TableRow]", parse_row: "Callable[[TableRow], T]") -> Iterator[T]:
        """Yield the value of each row that has no blank cell; count the others."""
        for row in rows:
            try:
                value = parse_row(row)
            except BlankCellError as error:
                if self.strict:
                    raise
                self.count, self.first = self.count + 1, self.first or error
                continue
            yield value

    def parse_all(self, path: Path, rows: "Iterable[TableRow]", parse_row: "Callable[[TableRow], T]") -> list[T]:
        """Return the values of all rows of a file without a blank cell, with a warning about the others.

        Raises DataError if there is none.
        """
        values = list(self.parse(rows, parse_row))
        self.check_rows(path, len(values))
        if self.count:
            log.warn(str(self))
        return values

    def check_rows(self, path: Path, count: int) -> None:
        """Raise DataError if no row is left."""
        if not count:
            blank = f"{format_count(self.count, 'rows')}, each with a blank cell, {self._locate()}"
            raise data_error(f"{path}: {blank if self.count else 'no rows below the header'}")


class TableRow(NamedTuple):
    """A row: its location ("file:line"), and its values by column."""

    location: str
    values: Mapping[str, Any]

    @property
    def number(self) -> str:
        """Number of its line."""
        return self.location.rpartition(":")[2]

    def get(self, column: str) -> Any:
        """Return a value; raise DataError with the available columns if there is none."""
        if column not in self.values:
            available = ", ".join(self.values)[:200]
            raise data_error(
                f"{self.location}: no field '{column}'{suggest(column, self.values)} (available: {available})"
            )
        return self.values[column]

    def require(self, column: str) -> Any:
        """Return a value that must not be blank."""
        value = self.get(column)
        if is_blank(value):
            raise BlankCellError(self.location, column)
        return value

    def get_text(self, column: str) -> str:
        """Return a value that must be text and not blank."""
        value = self.require(column)
        if not isinstance(value, str):
            raise data_error(f"{self.location}: field '{column}' must be text, got {str(value)[:40]!r}; fix the row")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:  # JSON can escape half a character
                raise data_error(
                    f"{self.location}: field '{column}': character {error.start} is half of a surrogate pair; fix it"
                ) from None
        return value


def data_error(message: str) -> DataError:
    """Return an error of one line, even if the column names in it contain newlines."""
    return DataError(" ".join(message.split()))


def read_text(path: Path, encoding: str | None = None) -> Iterator[str]:
    """Yield the text of a file in chunks, decompressed, with "\\n" newlines; the encoding is detected unless given."""
    name = os.fspath(path)
    stream = read_chunks(name, name, detect_compression(b"".join(read_chunks(name, name, "", 0, 16))))
    if encoding is not None:
        yield b"".join(stream).decode(encoding)
        return
    first = next(stream, b"")
    encoding_info = detect_encoding(first[:HEAD_BYTES])
    if encoding_info is None:
        raise DataError(f"{name}: binary file; expected text in UTF-8, UTF-16 or UTF-32")
    yield from decode(itertools.chain([first], stream), encoding_info[0], name, skip=encoding_info[1])


def read_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of every line."""
    for text, number, _ in split_documents(read_text(path, encoding), "\n"):
        yield number, text


@spec
class Jsonl:
    """One JSON object per line, or a list of objects."""

    def read_rows(self, path: Path) -> Iterator[TableRow]:
        """Yield every object."""
        name = os.fspath(path)
        for number, values in iter_json_rows(read_text(path), name):
            yield TableRow(f"{name}:{number}", values)


@spec
class Tsv:
    """Tab-separated rows; `columns` are their names if there is no header. Quotes are literal unless `has_quotes`."""

    columns: tuple[str, ...] = ()
    delimiter: str = "\t"
    has_quotes: bool = False
    allow_extra_columns: bool = False  # allow further columns, which are ignored

    def read_rows(self, path: Path) -> Iterator[TableRow]:
        """Yield every row below the header."""
        name = os.fspath(path)
        rows = iter_delimited_rows(read_text(path), self.delimiter, self.has_quotes, name)
        header = self.columns or tuple(next(rows, (0, []))[1])
        for number, cells in rows:
            if len(cells) < len(header) or (len(cells) > len(header) and not self.allow_extra_columns):
                raise DataError(f"{name}:{number}: expected {len(header)} columns, got {len(cells)}")
            yield TableRow(f"{name}:{number}", dict(zip(header, cells, strict=False)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """Format of a file: its columns, and for CSV and TSV delimiter, quotes and header."""

    path: Path
    form: Literal["delimited", "jsonl", "conll", "squad"]
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    has_quotes: bool = False
    has_header: bool = True
    strict: bool = False  # refuse rows with a blank cell

    def __str__(self) -> str:
        if self.form == "conll":
            return f"{self.path}: CoNLL, one word and tag per line"
        columns = ", ".join(self.columns)
        if self.form == "jsonl":
            return f"{self.path}: JSONL, fields {columns}"
        header = "with a header" if self.has_header else "without a header"
        quotes = "fields may be quoted" if self.has_quotes else "quotes are literal"
        if self.delimiter == SINGLE_COLUMN:
            return f"{self.path}: a table {header}, {quotes}, one column {columns}"
        return f"{self.path}: a table {header}, delimiter {self.delimiter!r}, {quotes}, columns {columns}"

    def read_rows(self) -> Iterator[TableRow]:
        """Yield every row; raise DataError with the line number if the number of columns differs."""
        if self.form == "jsonl":
            absent = dict.fromkeys(self.columns)  # a field that a line lacks is blank
            yield from (TableRow(row.location, {**absent, **row.values}) for row in Jsonl().read_rows(self.path))
            return
        columns = () if self.has_header else self.columns
        yield from Tsv(columns=columns, delimiter=self.delimiter, has_quotes=self.has_quotes).read_rows(self.path)

    def check_column(self, column: str) -> str:
        """Return the column if it exists, else raise DataError."""
        if column not in self.columns:
            raise data_error(
                f"{self.path}: no column '{column[:60]}'{suggest(column, self.columns)} "
                f"(available: {', '.join(self.columns)[:200]})"
            )
        return column


def find_column(columns: Iterable[str], meaning: str) -> str | None:
    """Return the first column with one of the names of a meaning in `COLUMNS`.

    >>> find_column(["id", "Review "], "text"), find_column(["id"], "text")
    ('Review ', None)
    """
    alike = {column.strip().lower(): column for column in reversed([*columns])}
    return next((alike[name] for name in COLUMNS[meaning] if name in alike), None)


def read_id(fields: Mapping[str, object], location: str) -> str:
    """Return the id of a row as text; empty if it has none.

    >>> read_id({"ID": 7, "text": "a"}, "a.jsonl:1"), read_id({"id": None}, "a.jsonl:2"), read_id({}, "a.jsonl:3")
    ('7', '', '')
    """
    column = find_column(fields, "id")
    value = "" if column is None or fields[column] is None else fields[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{location}: '{column}' must be a string or a number, got {type(value).__name__}")
    return str(value)


def find_pair_columns(columns: Iterable[str], label: str | None = None) -> tuple[str, str] | None:
    """Return the two columns of a pair of texts, if they have known names and there is no column `text`.

    >>> find_pair_columns(["id", "Question", "sentence", "label"])
    ('Question', 'sentence')
    """
    names = {column.strip().lower(): column for column in columns if column != label}
    if "text" in names:
        return None
    pairs = [(names[first], names[second]) for first, second in PAIR_COLUMNS if first in names and second in names]
    return pairs[0] if pairs else None


def pick_column(table: TableFile, column_name: str | None, meaning: str, role: str) -> str:
    """Return the named column, or the first with one of the names of a meaning; `role` is the option that names it."""
    if column_name is not None:
        return table.check_column(column_name)
    column = find_column(table.columns, meaning)
    if column is not None:
        return column
    number = f"; without a header by number, --{role} 1" if table.form == "delimited" else ""
    raise data_error(
        f"{table.path}: no {role} column found; name it with --{role} ({', '.join(table.columns)[:200]}){number}; "
        f"for `pretune evaluate` with --column {role}=NAME"
    )


def open_table(
    path: str | os.PathLike[str], column_names: Sequence[str] = (), *, allow_single_column: bool = False
) -> TableFile:
    """Detect the format of a file; the names of requested columns help to recognize a header.

    Without a header the columns are named 1, 2, 3, … With `allow_single_column`, a file with one column needs no
    delimiter.
    """
    path = check_path(path, DataError)
    if not path.is_file():
        raise DataError(f"{path}: {explain_missing(path)}")
    ending = remove_compression(path).suffix.lower()
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
    """Find the delimiter with a consistent number of columns, more than one; TSV is tried without quotes first."""
    tries = [("\t", False), ("\t", True), (",", True), (";", True), ("|", True)]
    if ending == ".csv":
        tries = [(",", True), (";", True), ("\t", True), ("|", True), (",", False)]
    candidates: list[tuple[tuple[int, int, int], str, bool, list[str]]] = []
    quote_errors: dict[str, UnclosedQuoteError] = {}
    for place, (delimiter, has_quotes) in enumerate(tries):
        if not has_quotes and delimiter in quote_errors:
            continue  # without quotes the row would parse, with a stray quote in its text
        rows, error = _read_sample(path, delimiter, has_quotes)
        if error is not None and delimiter != "\t":
            quote_errors[delimiter] = error
        if not rows or len(rows[0]) < 2:
            continue
        consistent = sum(len(row) == len(rows[0]) for row in rows)
        has_stray_quotes = any(len(cell) > 1 and cell[0] == cell[-1] == '"' for row in rows for cell in row)
        rank = (2 * consistent > len(rows), consistent * 100 // len(rows) - 50 * has_stray_quotes, -place)
        candidates.append((rank, delimiter, has_quotes, rows[0]))
    if not candidates and allow_single_column:
        rows, error = _read_sample(path, SINGLE_COLUMN, True)
        if error is not None and not rows:
            raise error
        candidates.append(((0, 0, 0), SINGLE_COLUMN, True, rows[0]))
    if not candidates and quote_errors:
        raise next(iter(quote_errors.values()))
    if not candidates:
        raise DataError(
            f"{path}: not a table: no delimiter (tab, comma, semicolon, |) gives two or more columns; a text and a "
            "label are needed"
        )
    _, delimiter, has_quotes, first = max(candidates)
    header = _is_header(first, column_names)
    if header and len({*first}) < len(first):
        duplicate = next(cell for cell in first if first.count(cell) > 1)
        raise data_error(f"{path}:1: the header has the column '{duplicate[:60]}' twice; rename one")
    columns = tuple(first) if header else tuple(str(number) for number in range(1, len(first) + 1))
    return TableFile(
        path=path, form="delimited", columns=columns, delimiter=delimiter, has_quotes=has_quotes, has_header=header
    )


def _read_sample(path: Path, delimiter: str, has_quotes: bool) -> tuple[list[list[str]], UnclosedQuoteError | None]:
    """Return the first rows, up to a broken one, and the error if that is an unclosed quote."""
    rows: list[list[str]] = []
    try:
        sample = iter_delimited_rows(read_text(path), delimiter, has_quotes, str(path))
        rows.extend(cells for _, cells in itertools.islice(sample, _SAMPLE_ROWS))
    except UnclosedQuoteError as error:
        return rows, error
    except DataError as error:
        if "bad row" not in str(error):
            raise
    return rows, None


def _is_header(cells: Sequence[str], column_names: Sequence[str]) -> bool:
    """Return True if a requested name is in the row or all cells look like names; False if columns are numbers."""
    if column_names and all(name.isdecimal() for name in column_names):
        return False
    if any(name in cells for name in column_names):
        return True
    return all(cell.strip() and len(cell) <= _MAX_NAME_LENGTH and not is_number(cell) for cell in cells)


def is_number(value: str) -> bool:
    """Return True for numbers, including NaN and infinity."""
    try:
        float(value)
    except ValueError:
        return False
    return True


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_conll(path: Path) -> bool:
    """Return True for blocks of lines with the same number of cells, two or more, with blank lines between them."""
    lines = "".join(itertools.islice(read_text(path), 1)).split("\n")[:200]
    widths = {len(line.split()) for line in lines[:-1] if line.strip()}
    return len(widths) == 1 and widths.pop() >= 2 and any(not line.strip() for line in lines[:-1])


def remove_compression(path: Path) -> Path:
    """Return the name of a file without the extension of its compression."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSION_SUFFIXES else path
