"""Documents from JSONL, CSV and TSV: one per row, from one field.

A damaged row, a missing field or a value that is not text is an error with its line; a row whose text is null or blank
gives an empty document, which the caller counts.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from pretune.core.errors import DataError
from pretune.text.corpora.decoding import Errors
from pretune.text.corpora.formats import MAX_ROW_CHARACTERS, DelimitedFormat
from pretune.text.corpora.splitting import split_documents


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
            raise DataError(f"{location}: field '{field}' holds {_describe_type(text)}, not text")
        yield _replace_surrogates(text, location, errors, counts), number


def iter_jsonl_rows(chunks: Iterable[str], name: str, line: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
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
            raise DataError(f"{name}:{number}: expected a JSON object on each line, got {_describe_type(row)}")
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
    """Yield (line, cells) of every row that is not blank; a quoted cell may span several lines."""
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
            if len(row) > 1 or "".join(row).strip(" "):
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


def _describe_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", dict: "an object", type(None): "null"}
    return names.get(type(value), "a number")
