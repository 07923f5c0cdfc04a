"""What kind of file this is, by its content; its name only settles what content cannot.

- Parquet, gzip, xz, zstd and bzip2 have their magic bytes; text and binary are told apart as `decoding` says.
- JSONL: the first line and most of the first ten are JSON objects (or the name ends in .jsonl or .ndjson).
- CSV and TSV: a header and equally many columns in the first rows, and either the name ends in .csv or .tsv, or a field
  was asked for and is in the header. Prose with commas is therefore never a table.
- Everything else is plain text: a block is a document, and a file without empty lines is one. Markdown, where a block
  is a paragraph, is known by its name, and is one document per file.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from pretune.core.errors import DataError
from pretune.text.corpora.decoding import Errors, decode, encoding_of
from pretune.text.corpora.fields import NAMES, UnfitError, choose_field
from pretune.text.corpora.formats import ROW, By, Delimited, Format
from pretune.text.corpora.parquet import parquet_columns
from pretune.text.corpora.streams import chunks, compression_of
from pretune.text.corpora.tables import UnclosedQuoteError, delimited_rows, jsonl_rows

_HEAD = 2**18
_ROWS = 100  # rows looked at to choose a field, or to see that a table is one
_COMPRESSED = {".gz", ".xz", ".zst", ".bz2"}
_DELIMITERS = {".csv": ",;\t|", ".tsv": "\t", ".tab": "\t"}
_OBJECT = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:')
_NUMBER = re.compile(r"\s*[+-]?[\d.,:/%-]+(?:e[+-]?\d+)?\s*|true|false|nan|null|none|", re.IGNORECASE)
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_LONGEST_NAME = 200


def recognise(path: str, name: str, by: By = "auto", field: str | None = None, errors: Errors = "strict") -> Format:
    """How to read a file; `UnfitError` when it has no text for us, `DataError` when it is broken."""
    first = b"".join(chunks(path, name, "", 0, 16))
    if first.startswith(b"PAR1"):
        if by not in ("auto", "field"):
            raise DataError(f"{name}: a Parquet file has one document per row, not per {by}; leave by=… away")
        return Format(kind="parquet", by="field", field=_parquet_field(path, name, field))
    compression = compression_of(first)
    head, cut = _head(path, name, compression)
    if head.startswith(b"PAR1"):
        raise DataError(f"{name}: Parquet inside {compression} cannot be read; decompress it first")
    found = encoding_of(head)
    if found is None:
        raise UnfitError("binary_files", f"{name}: a binary file; text in UTF-8, UTF-16 or UTF-32 is expected")
    encoding, mark = found
    start = decode([head], encoding, name, errors, skip=mark)
    text = next(start, "") if cut else "".join(start)

    def whole() -> Iterator[str]:
        return decode(chunks(path, name, compression), encoding, name, errors, skip=mark)

    if not text.strip() and all(not more.strip() for more in whole()):
        state = "has only white space" if head else "is empty"
        raise UnfitError("empty_files", f"{name}: the file {state}; leave it out")
    plain = Format(kind="text", by="block", compression=compression, encoding=encoding, mark=mark)
    if by in ("file", "block", "line"):
        return replace(plain, by=by)
    return _table(text, cut, whole, name, plain, field) or _prose(name, plain, by, field)


def _prose(name: str, plain: Format, by: By, field: str | None) -> Format:
    if by == "field" or field is not None:
        asked = f"a field '{field}'" if field is not None else "a field"
        raise UnfitError(
            "plain_text_files", f"{name}: plain text, though {asked} was asked for; use JSONL, CSV or Parquet"
        )
    return replace(plain, by="file" if _ending(name) in (".md", ".markdown") else "block")


def _table(
    text: str, cut: bool, whole: Callable[[], Iterator[str]], name: str, plain: Format, field: str | None
) -> Format | None:
    """The format of JSONL, CSV and TSV; None when the text is none of them."""
    ending = _ending(name)
    if ending in (".jsonl", ".ndjson") or _looks_like_jsonl(text, cut):
        columns: dict[str, bool] = {}
        for _, row in itertools.islice(jsonl_rows(whole(), name), _ROWS):
            for column, value in row.items():
                columns[column] = columns.get(column, False) or isinstance(value, str)
        return replace(plain, kind="jsonl", by="field", field=choose_field(columns, field, name))
    if cut and "\n" not in text and (ending in _DELIMITERS or field is not None):
        text, cut = _first_line(whole())
    if ending in _DELIMITERS:
        how, rows = _delimited(text, cut, _DELIMITERS[ending], name)
    elif field is not None and (found := _with_field(text, cut, field, name)):
        how, rows = found
    else:
        return None
    values = {column: [row[at] for row in rows] for at, column in reversed([*enumerate(how.header)])}
    # Where the first row is longer than what we look at, any column may hold text.
    columns = {column: not rows or any(not _NUMBER.fullmatch(cell) for cell in values[column]) for column in how.header}
    chosen = choose_field(columns, field, name)
    if how.header.count(chosen) > 1:
        raise DataError(f"{name}: the header has the column '{chosen}' twice; rename one")
    return replace(plain, kind="csv", by="field", field=chosen, delimited=how)


def _first_line(parts: Iterator[str]) -> tuple[str, bool]:
    """A first line that is longer than what is usually looked at, and some of what follows; and whether it is cut."""
    found: list[str] = []
    size = 0
    for part in parts:
        found.append(part)
        size += len(part)
        if "\n" in part or size > ROW:
            return "".join(found), True
    return "".join(found), False


def _looks_like_jsonl(text: str, cut: bool) -> bool:
    lines = text.split("\n")
    whole = [line for line in (lines[:-1] if cut else lines) if line.strip()][:10]
    if not whole:  # the first line is longer than what we look at
        return bool(_OBJECT.match(text))
    found = [_is_object(line) for line in whole]
    return found[0] and 2 * sum(found) >= len(found)


def _is_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _delimited(text: str, cut: bool, delimiters: str, name: str) -> tuple[Delimited, Sequence[Sequence[str]]]:
    """How a file that is called a table is written, with its first rows."""
    single, unclosed = None, None
    for delimiter in delimiters:
        for quoted in _quoting(text, delimiter):
            try:
                numbered = _sample(text, cut, delimiter, quoted, name)
            except UnclosedQuoteError as fault:
                unclosed = unclosed or fault
                break  # NOTE: without quotes the row would be read as it is, with a quote in its text
            rows = [row for _, row in numbered]
            if not rows or any(len(row) != len(rows[0]) for row in rows):
                continue
            if not _is_header(rows[0]):
                raise DataError(
                    f"{name}: the first row is no header of column names; add one, or read it with by='line'"
                )
            found = Delimited(delimiter=delimiter, quoted=quoted, header=tuple(rows[0])), rows[1:]
            if len(rows[0]) > 1:
                return found
            single = single or (found if not set(rows[0][0]) & set(delimiters) else None)
    if unclosed:
        raise unclosed
    if single:
        return single
    raise _uneven(_sample(text, cut, delimiters[0], delimiters[0] != "\t", name), name)


def _uneven(rows: Sequence[tuple[int, Sequence[str]]], name: str) -> DataError:
    """The error of a table with rows of different length; inside a folder it counts only if it may have been meant."""
    header = rows[0][1] if rows else []
    line, row = next(((line, row) for line, row in rows if len(row) != len(header)), (1, header))
    found = f"the row has {len(row)} columns, the header {len(header)}" if rows else "its quotes do not match"
    message = f"{name}:{line}: {found}; mend the table, or read it as text with by='line'"
    if any(cell.lower() in NAMES for cell in header):
        return DataError(message)
    return UnfitError("tables_without_text_field", message)


def _with_field(text: str, cut: bool, field: str, name: str) -> tuple[Delimited, Sequence[Sequence[str]]] | None:
    """How a file is written if it is a table with this field; None when it is none."""
    unclosed = None
    for delimiter in ",\t;|":
        for quoted in _quoting(text, delimiter):
            try:
                rows = [row for _, row in _sample(text, cut, delimiter, quoted, name)]
            except UnclosedQuoteError as fault:
                unclosed = unclosed or (fault if field in text.partition("\n")[0].split(delimiter) else None)
                break
            if len(rows) > 1 and field in rows[0] and all(len(row) == len(rows[0]) for row in rows):
                return Delimited(delimiter=delimiter, quoted=quoted, header=tuple(rows[0])), rows[1:]
    if unclosed:
        raise unclosed
    return None


def _sample(text: str, cut: bool, delimiter: str, quoted: bool, name: str) -> list[tuple[int, list[str]]]:
    """The first rows; a row that was cut off is left out, and none are given when the quotes make no sense.

    A quote that is never closed is an error, except in TSV, where it is mostly a character like others.
    """
    rows: list[tuple[int, list[str]]] = []
    try:
        for row in delimited_rows([text], delimiter, quoted, name):
            rows.append(row)
            if len(rows) > _ROWS:
                return rows
    except UnclosedQuoteError:
        if cut or delimiter == "\t":
            return rows if cut else []
        raise
    except DataError:
        return rows if cut else []
    return rows[:-1] if cut and len(rows) > 1 else rows


def _quoting(text: str, delimiter: str) -> tuple[bool, ...]:
    """Whether to try quotes, in order. TSV is mostly written without: a quote is then a character like others."""
    if delimiter != "\t":
        return True, False
    cells = [cell for line in text.split("\n")[:_ROWS] for cell in line.split("\t") if cell.startswith('"')]
    return (True, False) if cells and all(_QUOTED.fullmatch(cell) for cell in cells) else (False, True)


def _is_header(row: Sequence[str]) -> bool:
    return any(row) and all(len(cell) <= _LONGEST_NAME and (not cell or not _NUMBER.fullmatch(cell)) for cell in row)


def _parquet_field(path: str, name: str, field: str | None) -> str:
    columns = parquet_columns(path, name)
    chosen = choose_field(columns, field, name)
    if not columns[chosen]:
        texts = ", ".join(f"'{column}'" for column, is_text in columns.items() if is_text)
        raise DataError(f"{name}: field '{chosen}' does not hold text (fields that do: {texts or 'none'})")
    return chosen


def _head(path: str, name: str, compression: str) -> tuple[bytes, bool]:
    """The first bytes, decompressed, and whether there are more."""
    data = b""
    for chunk in chunks(path, name, compression, 0, None if compression else _HEAD + 1):
        data += chunk
        if len(data) > _HEAD:
            break
    return data[:_HEAD], len(data) > _HEAD


def _ending(name: str) -> str:
    """The ending of a name, that of a compression left aside, in lower case."""
    path = PurePath(name.lower())
    return PurePath(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix
