"""Documents, the splitting of long ones into pieces, and the format of a file: unit, encoding, text field.

A document has no newlines at its ends. No piece is longer than `MAX_CHARACTERS` characters, so a line of two gigabytes
needs no more memory than one of eight megabytes:

    >>> [(piece, is_continued) for piece, is_continued in split_pieces("one two three", max_characters=8)]
    [('one two', True), (' three', False)]

Joined, the pieces are the document; a split is before a space, so that tokenizers which attach a space to the next
word see the same words as in the whole document.
"""

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pretune.core.errors import DataError, suggest

MAX_CHARACTERS = 8 * 2**20
"""Maximum length of a `Document.text`; longer documents come in pieces."""

_WINDOW = 4096  # search range for a space before the limit
_JOINERS = "\u200d\ufe0e\ufe0f"  # an emoji continues after these, and before the last two


@dataclass(frozen=True, slots=True)
class Document:
    """A text of a corpus, or a piece of a very long one."""

    text: str
    source: int  # index into `Corpus.sources`
    location: str  # "file:line" or "file:row 7", for messages
    is_continued: bool = False  # the document continues in the next piece
    pair: str | None = None  # the second side: a translation or a target text

    @property
    def sides(self) -> tuple[str, ...]:
        """One or two texts of the document."""
        return (self.text,) if self.pair is None else (self.text, self.pair)


def find_cut(text: str, max_characters: int) -> int:
    """Return where to split a text longer than `max_characters`: before a space near the limit, else at the limit.

    The result depends only on the first `max_characters + 1` characters, not on how the text was read.
    """
    low = max(1, max_characters - _WINDOW)
    for i in range(max_characters, low - 1, -1):
        if text[i].isspace():
            return i
    for i in range(max_characters, max(low, max_characters - 64) - 1, -1):  # no space: avoid splitting a grapheme
        if not unicodedata.combining(text[i]) and text[i] not in _JOINERS and text[i - 1] != _JOINERS[0]:
            return i
    return max_characters


def split_pieces(text: str, max_characters: int = MAX_CHARACTERS) -> Iterator[tuple[str, bool]]:
    """Yield pieces of at most `max_characters` characters, each with whether more follows."""
    while len(text) > max_characters:
        cut = find_cut(text, max_characters)
        yield text[:cut], True
        text = text[cut:]
    yield text, False


TEXT_FIELDS = (
    *("text", "content", "contents", "body", "document", "article", "passage", "paragraph", "sentence", "review"),
    *("story", "raw_content", "raw_text", "abstract"),
)
"""Common names of text fields, most reliable first; case-insensitive."""

_MAX_LISTED = 20


class UnfitError(DataError):
    """Unsuitable file: an error if it was named, skipped and counted (under `reason`) inside a folder."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type["UnfitError"], tuple[str, str]]:
        return UnfitError, (self.reason, str(self))  # for pickling between processes


def choose_field(columns: Mapping[str, bool], field: str | None, name: str) -> str:
    """Return the requested field, else the first of `TEXT_FIELDS`, else the only text column (True in `columns`).

    >>> choose_field({"id": False, "Text": True, "label": True}, None, "a.csv")
    'Text'
    """
    field_names = ", ".join(f"'{column[:60]}'" for column in list(columns)[:_MAX_LISTED]) or "none"
    field_names += ", …" if len(columns) > _MAX_LISTED else ""
    if field is not None:
        if field not in columns:
            raise DataError(f"{name}: no field '{field}'{suggest(field, columns)} (fields: {field_names})")
        return field
    by_lower = {column.lower(): column for column, is_text in reversed([*columns.items()]) if is_text}
    for option in TEXT_FIELDS:
        if option in by_lower:
            return by_lower[option]
    texts = [column for column, is_text in columns.items() if is_text]
    if len(texts) == 1:
        return texts[0]
    problem = "several fields could be" if texts else "no field is"
    raise UnfitError("tables_without_text_field", f"{name}: {problem} the text; set field=… (fields: {field_names})")


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
