"""A document, and how a long one is cut into pieces.

A document has no newlines at its ends and keeps everything between them. No piece is longer than `MAX_CHARACTERS` characters,
so a line of two gigabytes needs no more memory than one of eight megabytes:

    >>> [(piece, is_continued) for piece, is_continued in split_pieces("one two three", longest=8)]
    [('one two', True), (' three', False)]

Joined, the pieces are the document; a cut goes before a space, so that tokenizers which attach a space to the word
after it see the same words as in the whole.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

MAX_CHARACTERS = 8 * 2**20
"""The most characters of one `Document.text`; what is longer comes in pieces."""

_WINDOW = 4096  # how far before the limit a space is looked for
_JOINERS = "\u200d\ufe0e\ufe0f"  # an emoji goes on after these, and before the last two


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a corpus, or a piece of one when it is very long."""

    text: str
    source: int  # index into `Corpus.sources`
    location: str  # "file:line" or "file:row 7", for messages
    is_continued: bool = False  # the document goes on in the next piece
    pair: str | None = None  # its other side, where it has two: a translation, or what is to be written

    @property
    def sides(self) -> tuple[str, ...]:
        """Its texts: one or two."""
        return (self.text,) if self.pair is None else (self.text, self.pair)


def find_cut(text: str, max_characters: int) -> int:
    """Where to cut a text of more than `longest` characters: before a space near the limit, else at the limit.

    The answer depends on the first `longest + 1` characters alone, so it does not matter how a text was read.
    """
    low = max(1, max_characters - _WINDOW)
    for at in range(max_characters, low - 1, -1):
        if text[at].isspace():
            return at
    for at in range(
        max_characters, max(low, max_characters - 64) - 1, -1
    ):  # no space: at least not inside a character of several
        if not unicodedata.combining(text[at]) and text[at] not in _JOINERS and text[at - 1] != _JOINERS[0]:
            return at
    return max_characters


def split_pieces(text: str, max_characters: int = MAX_CHARACTERS) -> Iterator[tuple[str, bool]]:
    """A text in pieces of at most `longest` characters, each with whether more follows."""
    while len(text) > max_characters:
        at = find_cut(text, max_characters)
        yield text[:at], True
        text = text[at:]
    yield text, False
