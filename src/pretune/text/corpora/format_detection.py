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
from pretune.text.corpora.decoding import Errors, decode, detect_encoding
from pretune.text.corpora.fields import TEXT_FIELDS, UnfitError, choose_field
from pretune.text.corpora.formats import MAX_ROW_CHARACTERS, DelimitedFormat, DocumentBoundary, FileFormat
from pretune.text.corpora.parquet import list_parquet_columns
from pretune.text.corpora.streams import detect_compression, read_chunks
from pretune.text.corpora.tables import UnclosedQuoteError, iter_delimited_rows, iter_jsonl_rows

_HEAD_BYTES = 2**18
_MAX_ROWS = 100  # rows looked at to choose a field, or to see that a table is one
_COMPRESSION_SUFFIXES = {".gz", ".xz", ".zst", ".bz2"}
_DELIMITERS = {".csv": ",;\t|", ".tsv": "\t", ".tab": "\t"}
_OBJECT = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:')
_NUMBER = re.compile(r"\s*[+-]?[\d.,:/%-]+(?:e[+-]?\d+)?\s*|true|false|nan|null|none|", re.IGNORECASE)
_QUOTED_CELL = re.compile(r'"(?:[^"]|"")*"')
_MAX_NAME_LENGTH = 200


def detect_format(
    path: str, name: str, by: DocumentBoundary = "auto", field: str | None = None, errors: Errors = "strict"
) -> FileFormat:
    """How to read a file; `UnfitError` when it has no text for us, `DataError` when it is broken."""
    first = b"".join(read_chunks(path, name, "", 0, 16))
    if first.startswith(b"PAR1"):
        if by not in ("auto", "field"):
            raise DataError(f"{name}: a Parquet file has one document per row, not per {by}; leave by=… away")
        return FileFormat(kind="parquet", unit="field", field=_choose_parquet_field(path, name, field))
    compression = detect_compression(first)
    head, cut = _read_head(path, name, compression)
    if head.startswith(b"PAR1"):
        raise DataError(f"{name}: Parquet inside {compression} cannot be read; decompress it first")
    found = detect_encoding(head)
    if found is None:
        raise UnfitError("binary_files", f"{name}: a binary file; text in UTF-8, UTF-16 or UTF-32 is expected")
    encoding, mark = found
    start = decode([head], encoding, name, errors, skip=mark)
    text = next(start, "") if cut else "".join(start)

    def whole() -> Iterator[str]:
        return decode(read_chunks(path, name, compression), encoding, name, errors, skip=mark)

    if not text.strip() and all(not more.strip() for more in whole()):
        state = "has only white space" if head else "is empty"
        raise UnfitError("empty_files", f"{name}: the file {state}; leave it out")
    plain = FileFormat(kind="text", unit="block", compression=compression, encoding=encoding, bom_bytes=mark)
    if by in ("file", "block", "line"):
        return replace(plain, unit=by)
    return _detect_table(text, cut, whole, name, plain, field) or _detect_prose(name, plain, by, field)


def _detect_prose(name: str, text_format: FileFormat, by: DocumentBoundary, field: str | None) -> FileFormat:
    if by == "field" or field is not None:
        asked = f"a field '{field}'" if field is not None else "a field"
        raise UnfitError(
            "plain_text_files", f"{name}: plain text, though {asked} was asked for; use JSONL, CSV or Parquet"
        )
    return replace(text_format, unit="file" if _get_suffix(name) in (".md", ".markdown") else "block")


def _detect_table(
    text: str,
    is_truncated: bool,
    read_text: Callable[[], Iterator[str]],
    name: str,
    text_format: FileFormat,
    field: str | None,
) -> FileFormat | None:
    """The format of JSONL, CSV and TSV; None when the text is none of them."""
    ending = _get_suffix(name)
    if ending in (".jsonl", ".ndjson") or _looks_like_jsonl(text, is_truncated):
        columns: dict[str, bool] = {}
        for _, row in itertools.islice(iter_jsonl_rows(read_text(), name), _MAX_ROWS):
            for column, value in row.items():
                columns[column] = columns.get(column, False) or isinstance(value, str)
        return replace(text_format, kind="jsonl", unit="field", field=choose_field(columns, field, name))
    if is_truncated and "\n" not in text and (ending in _DELIMITERS or field is not None):
        text, is_truncated = _read_first_line(read_text())
    if ending in _DELIMITERS:
        how, rows = _detect_delimited(text, is_truncated, _DELIMITERS[ending], name)
    elif field is not None and (found := _detect_with_field(text, is_truncated, field, name)):
        how, rows = found
    else:
        return None
    values = {column: [row[at] for row in rows] for at, column in reversed([*enumerate(how.header)])}
    # Where the first row is longer than what we look at, any column may hold text.
    columns = {column: not rows or any(not _NUMBER.fullmatch(cell) for cell in values[column]) for column in how.header}
    chosen = choose_field(columns, field, name)
    if how.header.count(chosen) > 1:
        raise DataError(f"{name}: the header has the column '{chosen}' twice; rename one")
    return replace(text_format, kind="csv", unit="field", field=chosen, delimited_format=how)


def _read_first_line(parts: Iterator[str]) -> tuple[str, bool]:
    """A first line that is longer than what is usually looked at, and some of what follows; and whether it is cut."""
    found: list[str] = []
    size = 0
    for part in parts:
        found.append(part)
        size += len(part)
        if "\n" in part or size > MAX_ROW_CHARACTERS:
            return "".join(found), True
    return "".join(found), False


def _looks_like_jsonl(text: str, is_truncated: bool) -> bool:
    lines = text.split("\n")
    whole = [line for line in (lines[:-1] if is_truncated else lines) if line.strip()][:10]
    if not whole:  # the first line is longer than what we look at
        return bool(_OBJECT.match(text))
    found = [_is_object(line) for line in whole]
    return found[0] and 2 * sum(found) >= len(found)


def _is_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _detect_delimited(
    text: str, is_truncated: bool, delimiters: str, name: str
) -> tuple[DelimitedFormat, Sequence[Sequence[str]]]:
    """How a file that is called a table is written, with its first rows."""
    single, unclosed = None, None
    for delimiter in delimiters:
        for quoted in _list_quoting(text, delimiter):
            try:
                numbered = _read_sample(text, is_truncated, delimiter, quoted, name)
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
            found = DelimitedFormat(delimiter=delimiter, has_quotes=quoted, header=tuple(rows[0])), rows[1:]
            if len(rows[0]) > 1:
                return found
            single = single or (found if not set(rows[0][0]) & set(delimiters) else None)
    if unclosed:
        raise unclosed
    if single:
        return single
    raise _make_uneven_error(_read_sample(text, is_truncated, delimiters[0], delimiters[0] != "\t", name), name)


def _make_uneven_error(rows: Sequence[tuple[int, Sequence[str]]], name: str) -> DataError:
    """The error of a table with rows of different length; inside a folder it counts only if it may have been meant."""
    header = rows[0][1] if rows else []
    line, row = next(((line, row) for line, row in rows if len(row) != len(header)), (1, header))
    found = f"the row has {len(row)} columns, the header {len(header)}" if rows else "its quotes do not match"
    message = f"{name}:{line}: {found}; mend the table, or read it as text with by='line'"
    if any(cell.lower() in TEXT_FIELDS for cell in header):
        return DataError(message)
    return UnfitError("tables_without_text_field", message)


def _detect_with_field(
    text: str, is_truncated: bool, field: str, name: str
) -> tuple[DelimitedFormat, Sequence[Sequence[str]]] | None:
    """How a file is written if it is a table with this field; None when it is none."""
    unclosed = None
    for delimiter in ",\t;|":
        for quoted in _list_quoting(text, delimiter):
            try:
                rows = [row for _, row in _read_sample(text, is_truncated, delimiter, quoted, name)]
            except UnclosedQuoteError as fault:
                unclosed = unclosed or (fault if field in text.partition("\n")[0].split(delimiter) else None)
                break
            if len(rows) > 1 and field in rows[0] and all(len(row) == len(rows[0]) for row in rows):
                return DelimitedFormat(delimiter=delimiter, has_quotes=quoted, header=tuple(rows[0])), rows[1:]
    if unclosed:
        raise unclosed
    return None


def _read_sample(
    text: str, is_truncated: bool, delimiter: str, has_quotes: bool, name: str
) -> list[tuple[int, list[str]]]:
    """The first rows; a row that was cut off is left out, and none are given when the quotes make no sense.

    A quote that is never closed is an error, except in TSV, where it is mostly a character like others.
    """
    rows: list[tuple[int, list[str]]] = []
    try:
        for row in iter_delimited_rows([text], delimiter, has_quotes, name):
            rows.append(row)
            if len(rows) > _MAX_ROWS:
                return rows
    except UnclosedQuoteError:
        if is_truncated or delimiter == "\t":
            return rows if is_truncated else []
        raise
    except DataError:
        return rows if is_truncated else []
    return rows[:-1] if is_truncated and len(rows) > 1 else rows


def _list_quoting(text: str, delimiter: str) -> tuple[bool, ...]:
    """Whether to try quotes, in order. TSV is mostly written without: a quote is then a character like others."""
    if delimiter != "\t":
        return True, False
    cells = [cell for line in text.split("\n")[:_MAX_ROWS] for cell in line.split("\t") if cell.startswith('"')]
    return (True, False) if cells and all(_QUOTED_CELL.fullmatch(cell) for cell in cells) else (False, True)


def _is_header(row: Sequence[str]) -> bool:
    return any(row) and all(len(cell) <= _MAX_NAME_LENGTH and (not cell or not _NUMBER.fullmatch(cell)) for cell in row)


def _choose_parquet_field(path: str, name: str, field: str | None) -> str:
    columns = list_parquet_columns(path, name)
    chosen = choose_field(columns, field, name)
    if not columns[chosen]:
        texts = ", ".join(f"'{column}'" for column, is_text in columns.items() if is_text)
        raise DataError(f"{name}: field '{chosen}' does not hold text (fields that do: {texts or 'none'})")
    return chosen


def _read_head(path: str, name: str, compression: str) -> tuple[bytes, bool]:
    """The first bytes, decompressed, and whether there are more."""
    data = b""
    for chunk in read_chunks(path, name, compression, 0, None if compression else _HEAD_BYTES + 1):
        data += chunk
        if len(data) > _HEAD_BYTES:
            break
    return data[:_HEAD_BYTES], len(data) > _HEAD_BYTES


def _get_suffix(name: str) -> str:
    """The ending of a name, that of a compression left aside, in lower case."""
    path = PurePath(name.lower())
    return PurePath(path.stem).suffix if path.suffix in _COMPRESSION_SUFFIXES else path.suffix
