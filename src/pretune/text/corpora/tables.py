"""Splitting of a text stream into documents: plain text at newlines, tables (JSONL, CSV, TSV, Parquet) by row.

Memory is bounded. Plain text is split per file, per block or per line. A block ends at an empty line. A line of spaces
does not end it: WikiText and the UDHR have such lines between the paragraphs of one document.

A row of a table gives one document, from one field. A damaged row, a missing field or a value that is not text is an
error with its line; a row whose text is null or blank gives an empty document, which the caller counts. Parquet needs
the extra `parquet`.
"""

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from pretune.core.errors import DataError, import_extra
from pretune.core.io.files import describe_type
from pretune.text.corpora.document import MAX_CHARACTERS, MAX_ROW_CHARACTERS, DelimitedFormat, find_cut
from pretune.text.corpora.streams import Errors

SEPARATORS = {"file": "", "block": "\n\n", "line": "\n"}
"""End of a document, for each unit of plain text."""
_OBJECT_LIST = re.compile(r"\s*\[\s*\{")
SINGLE_COLUMN = "\x1f"
"""Delimiter of a table with one column: a character that texts do not contain."""


def split_documents(
    chunks: Iterable[str], separator: str, line: int = 1, max_characters: int = MAX_CHARACTERS
) -> Iterator[tuple[str, int, bool]]:
    """Yield documents as (text, first line, whether it continues in the next one); texts may be empty or blank.

    >>> list(split_documents(["one\\ntwo", "\\n\\nthree"], "\\n\\n"))
    [('one\\ntwo', 1, False), ('three', 4, False)]

    The result does not depend on the chunks. `line` is the number of the first line.
    """
    parts: list[str] = []  # of the current document
    size = 0
    start = line  # its first line
    pending_newlines = 0  # part of it only if more of it follows
    for chunk in chunks:
        body = chunk.rstrip("\n")
        if not body:
            pending_newlines += len(chunk)
            continue
        trailing_newlines = len(chunk) - len(body)
        if pending_newlines:
            # NOTE: megabytes of newlines are truncated, or they would fill the memory.
            line += max(0, pending_newlines - max_characters)
            body = "\n" * min(pending_newlines, max_characters) + body
        pending_newlines = trailing_newlines
        texts = body.split(separator) if separator else [body]
        last = len(texts) - 1
        for index, text in enumerate(texts):
            if parts:
                if text:
                    parts.append(text)
                    size += len(text)
            else:
                document = text
                if separator != "\n":
                    document = text.lstrip("\n")
                start = line + len(text) - len(document)
                if index < last and len(document) <= max_characters:  # common case: a complete document
                    if document or separator == "\n":
                        yield document, start, False
                    line += 1 if separator == "\n" else text.count("\n") + 2
                    continue
                parts, size = [document], len(document)
            line += text.count("\n")
            while size > max_characters:
                full_text = "".join(parts)
                cut = find_cut(full_text, max_characters)
                yield full_text[:cut], start, True
                start += full_text.count("\n", 0, cut)
                parts, size = [full_text[cut:]], size - cut
            if index < last:
                line += len(separator)
                yield "".join(parts), start, False
                parts, size = [], 0
    if size:
        yield "".join(parts), start, False


class UnclosedQuoteError(DataError):
    """Row of a table with an unclosed quote."""


def read_jsonl(
    chunks: Iterable[str], field: str, name: str, line: int, errors: Errors, counts: Counter[str]
) -> Iterator[tuple[str, int]]:
    """Yield (text, line) of every row of a JSONL file."""
    for number, row in iter_jsonl_rows(chunks, name, line):
        location = f"{name}:{number}"
        if field not in row:
            raise DataError(
                f"{location}: missing field '{field}'; the row has {', '.join(map(repr, row))[:200] or 'no fields'}"
            )
        text = row[field]
        if text is None:
            text = ""
        elif not isinstance(text, str):
            raise DataError(f"{location}: field '{field}' holds {describe_type(text)}, not text")
        yield _replace_surrogates(text, location, errors, counts), number


def iter_jsonl_rows(chunks: Iterable[str], name: str, line: int = 1) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield (line, object) of every line that is not blank."""
    for number, text in _iter_lines(chunks, name, line):
        if not text or text.isspace():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as fault:
            raise DataError(f"{name}:{number}: bad JSON at column {fault.colno}: {fault.msg}") from None
        except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
            raise DataError(f"{name}:{number}: bad JSON: nested too deeply, or a number of too many digits") from None
        if not isinstance(row, dict):
            raise DataError(f"{name}:{number}: expected a JSON object on each line, got {describe_type(row)}")
        yield number, row


def iter_json_rows(chunks: Iterable[str], name: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield (number, object) of a JSON list of objects, else (line, object) of JSON lines."""
    stream = iter(chunks)
    first = next(stream, "")
    chunks = itertools.chain([first], stream)
    if not _OBJECT_LIST.match(first):
        yield from iter_jsonl_rows(chunks, name)
        return
    try:
        rows = json.loads("".join(chunks))
    except json.JSONDecodeError as fault:
        raise DataError(f"{name}:{fault.lineno}: bad JSON at column {fault.colno}: {fault.msg}") from None
    except (RecursionError, ValueError):
        raise DataError(f"{name}: bad JSON: nested too deeply, or a number of too many digits") from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(f"{name}:{number}: expected a list of JSON objects, got {describe_type(row)}")
        yield number, row


def read_delimited(
    chunks: Iterable[str], table_format: DelimitedFormat, field: str, name: str
) -> Iterator[tuple[str, int]]:
    """Yield (text, line) of every row of a CSV or TSV file, without the header."""
    column = table_format.header.index(field)
    rows = iter_delimited_rows(chunks, table_format.delimiter, table_format.has_quotes, name)
    next(rows, None)
    for number, row in rows:
        if len(row) != len(table_format.header):
            raise DataError(f"{name}:{number}: {len(row)} columns, but the header has {len(table_format.header)}")
        yield row[column], number


def iter_delimited_rows(
    chunks: Iterable[str], delimiter: str, has_quotes: bool, name: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of every row that is not blank; a quoted cell may span several lines.

    In a table with one column (`SINGLE_COLUMN`), a line is a row unless it is empty: `""` is a blank cell.
    """
    lines = _iter_lines(chunks, name, 1)
    if not has_quotes:
        yield from ((number, text.split(delimiter)) for number, text in lines if text.strip(" "))
        return
    # NOTE: a global setting, 128 KiB by default. It is only ever increased here.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_CHARACTERS))
    reader = csv.reader((text + "\n" for _, text in lines), delimiter=delimiter, strict=True)
    previous_line = 0
    try:
        for row in reader:
            if len(row) > 1 or "".join(row).strip(" ") or (row and delimiter == SINGLE_COLUMN):
                yield previous_line + 1, row
            previous_line = reader.line_num
    except csv.Error as fault:
        location = f"{name}:{previous_line + 1}: bad row"
        if "end of data" in str(fault):
            raise UnclosedQuoteError(f"{location}: unclosed quote; close it, or double it") from None
        raise DataError(f"{location}: {fault}") from None


def _iter_lines(chunks: Iterable[str], name: str, line: int) -> Iterator[tuple[int, str]]:
    for text, number, is_truncated in split_documents(chunks, "\n", line, MAX_ROW_CHARACTERS):
        if is_truncated:
            raise DataError(
                f"{name}:{number}: the line exceeds {MAX_ROW_CHARACTERS} characters, the limit of a table row"
            )
        yield number, text


def _replace_surrogates(text: str, location: str, errors: Errors, counts: Counter[str]) -> str:
    """Replace lone surrogates, which JSON can escape ("\\ud800") but UTF-8 cannot encode."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        if errors == "strict":
            raise DataError(f"{location}: character {fault.start} is a lone surrogate; fix the row") from None
        clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        counts["replaced_characters"] += clean.count("\ufffd") - text.count("\ufffd")
        return clean
    return text


_BATCH_ROWS = 256  # rows in memory


def read_parquet(path: str, field: str, name: str, start: int, stop: int | None, row: int) -> Iterator[tuple[str, int]]:
    """Yield (text, row) of the row groups from `start` to before `stop`; `row` is the number of the first row."""
    pyarrow = _import_pyarrow(name)
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            groups = [*range(start, file.num_row_groups if stop is None else stop)]
            for batch in file.iter_batches(_BATCH_ROWS, groups, [field], use_threads=False):
                for text in batch.column(0).to_pylist():
                    yield text or "", row
                    row += 1
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as fault:
        raise DataError(f"{name}: damaged Parquet at row {row}: {_get_first_line(fault)}") from fault


def list_parquet_columns(path: str, name: str) -> dict[str, bool]:
    """Return the columns of a file, each with whether it holds text."""
    pyarrow = _import_pyarrow(name)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            return {column.name: _is_text(pyarrow, column.type) for column in file.schema_arrow}
    except (pyarrow.ArrowException, OSError) as fault:
        raise DataError(f"{name}: damaged Parquet: {_get_first_line(fault)}") from fault


def plan_parquet_spans(path: str, name: str, n_bytes: int) -> list[tuple[int, int | None, int]]:
    """Return ranges of row groups (first group, group to stop before, number of the first row)."""
    pyarrow = _import_pyarrow(name)
    with pyarrow.parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
    starts, size, row = [(0, 1)], 0, 1
    for index, group in enumerate(groups):
        if size >= n_bytes:
            starts.append((index, row))
            size = 0
        size += group.total_byte_size
        row += group.num_rows
    ends = [*(start for start, _ in starts[1:]), None]
    return [(start, end, row) for (start, row), end in zip(starts, ends, strict=True)]


def _is_text(pyarrow: Any, kind: Any) -> bool:
    types = pyarrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _import_pyarrow(name: str) -> Any:
    pyarrow = import_extra("pyarrow", "parquet", f"{name}: reading Parquet needs")
    import_extra("pyarrow.parquet", "parquet", f"{name}: reading Parquet needs")
    return pyarrow


def _get_first_line(fault: Exception) -> str:
    return str(fault).partition("\n")[0][:200]
