"""Documents, and the splitting of long ones into pieces.

A document has no newlines at its ends. No piece is longer than `MAX_CHARACTERS` characters, so a line of two gigabytes
needs no more memory than one of eight megabytes:

    >>> [(piece, is_continued) for piece, is_continued in split_pieces("one two three", max_characters=8)]
    [('one two', True), (' three', False)]

Joined, the pieces are the document; a split is before a space, so that tokenizers which attach a space to the next
word see the same words as in the whole document.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

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
