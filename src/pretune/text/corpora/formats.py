"""Result of format detection: the settings of a reader."""

from dataclasses import dataclass
from typing import Literal

DocumentBoundary = Literal["auto", "file", "block", "line", "field"]
"""Unit of a document; `auto` decides by content."""

MAX_ROW_CHARACTERS = 64 * 2**20
"""Maximum length of a table row in characters: rows are parsed as a whole, so this bounds the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelimitedFormat:
    """Delimiter, quoting and header of a CSV or TSV file."""

    delimiter: str
    has_quotes: bool  # quoted fields may contain delimiters and newlines
    header: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """Format of a file."""

    kind: Literal["text", "jsonl", "csv", "parquet"]
    unit: DocumentBoundary  # never "auto"
    compression: str = ""
    encoding: str = "utf-8"
    bom_bytes: int = 0  # bytes of the byte order mark
    field: str | None = None
    delimited_format: DelimitedFormat | None = None
