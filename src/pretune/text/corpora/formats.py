"""What a file is: the outcome of looking at it, and everything a reader has to know."""

from dataclasses import dataclass
from typing import Literal

DocumentBoundary = Literal["auto", "file", "block", "line", "field"]
"""What makes a document; `auto` decides by content."""

MAX_ROW_CHARACTERS = 64 * 2**20
"""The most characters of one row of a table: rows are parsed whole, so this bounds the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelimitedFormat:
    """How the rows of a CSV or TSV file are written."""

    delimiter: str
    has_quotes: bool  # fields may stand in double quotes, and then hold delimiters and newlines
    header: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """How to read one file."""

    kind: Literal["text", "jsonl", "csv", "parquet"]
    unit: DocumentBoundary  # not "auto" any more
    compression: str = ""
    encoding: str = "utf-8"
    bom_bytes: int = 0  # bytes of the byte order mark
    field: str | None = None
    delimited_format: DelimitedFormat | None = None
