"""Format detection by content; the file name decides only where content cannot.

- Parquet, gzip, xz, zstd and bzip2 have magic bytes; text and binary are distinguished as in `streams`.
- JSONL: the first line and most of the first ten are JSON objects (or the name ends in .jsonl or .ndjson).
- CSV and TSV: a header and the same number of columns in the first rows, and either the name ends in .csv or .tsv, or
  the requested field is in the header. Prose with commas is therefore never a table.
- Everything else is plain text: a block is a document, and a file without empty lines is one. Markdown, where a block
  is a paragraph, is recognised by its name and is one document per file.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from pretune.core.errors import DataError
from pretune.text.corpora.document import (
    MAX_ROW_CHARACTERS,
    TEXT_FIELDS,
    DelimitedFormat,
    DocumentBoundary,
    FileFormat,
    UnfitError,
    choose_field,
)
from pretune.text.corpora.streams import Errors, decode, detect_compression, detect_encoding, read_chunks
from pretune.text.corpora.tables import UnclosedQuoteError, iter_delimited_rows, iter_jsonl_rows, list_parquet_columns

_HEAD_BYTES = 2**18
_MAX_ROWS = 100  # rows used to detect a table and its text field
_COMPRESSION_SUFFIXES = {".gz", ".xz", ".zst", ".bz2"}
_DELIMITERS = {".csv": ",;\t|", ".tsv": "\t", ".tab": "\t"}
_OBJECT = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:')
_NUMBER = re.compile(r"\s*[+-]?[\d.,:/%-]+(?:e[+-]?\d+)?\s*|true|false|nan|null|none|", re.IGNORECASE)
_QUOTED_CELL = re.compile(r'"(?:[^"]|"")*"')
_MAX_NAME_LENGTH = 200


def detect_format(
    path: str, name: str, by: DocumentBoundary = "auto", field: str | None = None, errors: Errors = "strict"
) -> FileFormat:
    """Detect the format of a file; raise `UnfitError` if it has no usable text, `DataError` if it is damaged."""
    first = b"".join(read_chunks(path, name, "", 0, 16))
    if first.startswith(b"PAR1"):
        if by not in ("auto", "field"):
            raise DataError(f"{name}: a Parquet file has one document per row, not per {by}; omit by=…")
        return FileFormat(kind="parquet", unit="field", field=_choose_parquet_field(path, name, field))
    compression = detect_compression(first)
    head, cut = _read_head(path, name, compression)
    if head.startswith(b"PAR1"):
        raise DataError(f"{name}: Parquet inside {compression} cannot be read; decompress it first")
    encoding_and_bom = detect_encoding(head)
    if encoding_and_bom is None:
        raise UnfitError("binary_files", f"{name}: binary file; expected text in UTF-8, UTF-16 or UTF-32")
    encoding, mark = encoding_and_bom
    decoded_chunks = decode([head], encoding, name, errors, skip=mark)
    text = next(decoded_chunks, "") if cut else "".join(decoded_chunks)

    def decode_file() -> Iterator[str]:
        return decode(read_chunks(path, name, compression), encoding, name, errors, skip=mark)

    if not text.strip() and all(not chunk.strip() for chunk in decode_file()):
        state = "has only white space" if head else "is empty"
        raise UnfitError("empty_files", f"{name}: the file {state}; remove it")
    text_format = FileFormat(kind="text", unit="block", compression=compression, encoding=encoding, bom_bytes=mark)
    if by in ("file", "block", "line"):
        return replace(text_format, unit=by)
    return _detect_table(text, cut, decode_file, name, text_format, field) or _detect_prose(
        name, text_format, by, field
    )


def _detect_prose(name: str, text_format: FileFormat, by: DocumentBoundary, field: str | None) -> FileFormat:
    if by == "field" or field is not None:
        request = f"a field '{field}'" if field is not None else "a field"
        raise UnfitError(
            "plain_text_files", f"{name}: plain text, but {request} was requested; use JSONL, CSV or Parquet"
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
    """Return the format of JSONL, CSV and TSV; None for other text."""
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
        table_format, rows = _detect_delimited(text, is_truncated, _DELIMITERS[ending], name)
    elif field is not None and (detection := _detect_with_field(text, is_truncated, field, name)):
        table_format, rows = detection
    else:
        return None
    values = {column: [row[i] for row in rows] for i, column in reversed([*enumerate(table_format.header)])}
    # If the first row is longer than the sample, any column may hold text.
    columns = {
        column: not rows or any(not _NUMBER.fullmatch(cell) for cell in values[column])
        for column in table_format.header
    }
    text_field = choose_field(columns, field, name)
    if table_format.header.count(text_field) > 1:
        raise DataError(f"{name}: duplicate column '{text_field}' in the header; rename one")
    return replace(text_format, kind="csv", unit="field", field=text_field, delimited_format=table_format)


def _read_first_line(parts: Iterator[str]) -> tuple[str, bool]:
    """Read a very long first line and some of what follows; return it with whether it was truncated."""
    chunks: list[str] = []
    size = 0
    for part in parts:
        chunks.append(part)
        size += len(part)
        if "\n" in part or size > MAX_ROW_CHARACTERS:
            return "".join(chunks), True
    return "".join(chunks), False


def _looks_like_jsonl(text: str, is_truncated: bool) -> bool:
    lines = text.split("\n")
    complete_lines = [line for line in (lines[:-1] if is_truncated else lines) if line.strip()][:10]
    if not complete_lines:  # the first line is longer than the sample
        return bool(_OBJECT.match(text))
    are_objects = [_is_object(line) for line in complete_lines]
    return are_objects[0] and 2 * sum(are_objects) >= len(are_objects)


def _is_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _detect_delimited(
    text: str, is_truncated: bool, delimiters: str, name: str
) -> tuple[DelimitedFormat, Sequence[Sequence[str]]]:
    """Detect delimiter and quoting of a CSV or TSV file; return them with its first rows."""
    single, unclosed_errors = None, dict[str, UnclosedQuoteError]()
    for table_format, rows in _iter_tables(text, is_truncated, delimiters, name, unclosed_errors):
        header = table_format.header
        if not _is_header(header):
            raise DataError(f"{name}: the first row is not a header of column names; add one, or use by='line'")
        if len(header) > 1:
            return table_format, rows
        single = single or ((table_format, rows) if not set(header[0]) & set(delimiters) else None)
    for error in unclosed_errors.values():
        raise error
    if single:
        return single
    raise _make_uneven_error(_read_sample(text, is_truncated, delimiters[0], delimiters[0] != "\t", name), name)


def _iter_tables(
    text: str, is_truncated: bool, delimiters: str, name: str, unclosed_errors: dict[str, UnclosedQuoteError]
) -> Iterator[tuple[DelimitedFormat, Sequence[Sequence[str]]]]:
    """Yield the formats in which the first rows have the same length, with these rows; unclosed quotes are noted."""
    for delimiter in delimiters:
        for has_quotes in _list_quoting(text, delimiter):
            try:
                rows = [row for _, row in _read_sample(text, is_truncated, delimiter, has_quotes, name)]
            except UnclosedQuoteError as fault:
                unclosed_errors[delimiter] = fault
                break  # NOTE: without quoting, the quote would become part of the text
            if rows and all(len(row) == len(rows[0]) for row in rows):
                yield DelimitedFormat(delimiter=delimiter, has_quotes=has_quotes, header=tuple(rows[0])), rows[1:]


def _make_uneven_error(rows: Sequence[tuple[int, Sequence[str]]], name: str) -> DataError:
    """Return the error for rows of different length; inside a folder it is raised only for tables with a text field."""
    header = rows[0][1] if rows else []
    line, row = next(((line, row) for line, row in rows if len(row) != len(header)), (1, header))
    problem = f"{len(row)} columns, but the header has {len(header)}" if rows else "unbalanced quotes"
    message = f"{name}:{line}: {problem}; fix the table, or read it as text with by='line'"
    if any(cell.lower() in TEXT_FIELDS for cell in header):
        return DataError(message)
    return UnfitError("tables_without_text_field", message)


def _detect_with_field(
    text: str, is_truncated: bool, field: str, name: str
) -> tuple[DelimitedFormat, Sequence[Sequence[str]]] | None:
    """Detect a table that has this field; None for other text."""
    unclosed_errors: dict[str, UnclosedQuoteError] = {}
    for table_format, rows in _iter_tables(text, is_truncated, ",\t;|", name, unclosed_errors):
        if rows and field in table_format.header:
            return table_format, rows
    for delimiter, error in unclosed_errors.items():
        if field in text.partition("\n")[0].split(delimiter):
            raise error
    return None


def _read_sample(
    text: str, is_truncated: bool, delimiter: str, has_quotes: bool, name: str
) -> list[tuple[int, list[str]]]:
    """Return the first rows without a truncated one, or none if the quotes are invalid.

    An unclosed quote is an error, except in TSV, where quotes are mostly plain characters.
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
    """Return the quoting modes to try, in order. TSV is mostly written without quoting."""
    if delimiter != "\t":
        return True, False
    cells = [cell for line in text.split("\n")[:_MAX_ROWS] for cell in line.split("\t") if cell.startswith('"')]
    return (True, False) if cells and all(_QUOTED_CELL.fullmatch(cell) for cell in cells) else (False, True)


def _is_header(row: Sequence[str]) -> bool:
    return any(row) and all(len(cell) <= _MAX_NAME_LENGTH and (not cell or not _NUMBER.fullmatch(cell)) for cell in row)


def _choose_parquet_field(path: str, name: str, field: str | None) -> str:
    columns = list_parquet_columns(path, name)
    text_field = choose_field(columns, field, name)
    if not columns[text_field]:
        texts = ", ".join(f"'{column}'" for column, is_text in columns.items() if is_text)
        raise DataError(f"{name}: field '{text_field}' does not hold text (fields that do: {texts or 'none'})")
    return text_field


def _read_head(path: str, name: str, compression: str) -> tuple[bytes, bool]:
    """Return the first bytes, decompressed, and whether there are more."""
    data = b""
    for chunk in read_chunks(path, name, compression, 0, None if compression else _HEAD_BYTES + 1):
        data += chunk
        if len(data) > _HEAD_BYTES:
            break
    return data[:_HEAD_BYTES], len(data) > _HEAD_BYTES


def _get_suffix(name: str) -> str:
    """Return the extension in lower case, without that of a compression."""
    path = PurePath(name.lower())
    return PurePath(path.stem).suffix if path.suffix in _COMPRESSION_SUFFIXES else path.suffix
