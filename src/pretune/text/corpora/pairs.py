"""Parallel text: two sides of equally many rows, each row of one belonging to that of the other.

    pair:train.en,train.de          two files, aligned line by line; each may be compressed
    pair:captions.tsv:en,de         two columns of a table: JSONL, CSV, TSV or Parquet
    pair:ids.jsonl:en,train.de      or one of each

A row that is blank on both sides is no document; one that is blank on one side only is left out and counted.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pretune.core.errors import DataError, UsageError
from pretune.text.corpora.decoding import Errors
from pretune.text.corpora.document import LONGEST, Document
from pretune.text.corpora.file_discovery import Finder
from pretune.text.corpora.items import WHOLE, File, Span
from pretune.text.corpora.snapshot import Stamp

PREFIX = "pair:"
HALF = "half_pairs"
"""What a row with one blank side is counted as."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two files of equally many rows, or two columns of one."""

    name: str
    first: File
    second: File

    @property
    def bytes(self) -> int:
        return self.first.bytes + (self.second.bytes if self.second.path != self.first.path else 0)

    def documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        sides = (_rows(self.first, errors, counts), _rows(self.second, errors, Counter()))
        for number, (one, other) in enumerate(itertools.zip_longest(*sides), 1):
            where = f"{self.name}:{number}"
            if one is None or other is None:
                short = self.first if one is None else self.second
                if not (one or other or "").strip():
                    continue  # blank lines at the end
                raise DataError(f"{where}: {short.name} ends before this row; the two sides must have equally many")
            yield from pair(one, other, source, where, counts)

    def spans(self, n_bytes: int) -> list[Span]:
        return [WHOLE]

    def identity(self) -> list[object]:
        return [self.name, self.first.identity(), self.second.identity()]

    def stamps(self) -> list[Stamp]:
        return [*self.first.stamps(), *self.second.stamps()]


def pair(one: str, other: str, source: int, where: str, counts: Counter[str]) -> Iterator[Document]:
    """The document of a row, if both of its sides have text."""
    texts = [text.replace("\r\n", "\n").replace("\r", "\n").strip("\n") for text in (one, other)]
    blank = [not text or text.isspace() for text in texts]
    if all(blank):
        counts["empty_documents"] += 1
    elif any(blank):
        counts[HALF] += 1
    elif max(map(len, texts)) > LONGEST:
        raise DataError(f"{where}: a side of more than {LONGEST:,} characters is too long for a pair; cut it")
    else:
        yield Document(texts[0], source, where, pair=texts[1])


def open_pairs(given: str, errors: Errors) -> Pairs:
    """Find and check both sides of `pair:SIDE,SIDE`."""
    sides = given.removeprefix(PREFIX).split(",")
    if len(sides) != 2 or not all(sides):
        raise UsageError(f"'{given}': expected 'pair:FILE,FILE' or 'pair:TABLE:COLUMN,COLUMN'")
    path, column = _side(sides[0])
    other = _side(sides[1])
    if column is not None and other[1] is None and not os.path.lexists(other[0]):
        other = path, sides[1]  # a column of the same table
    if (path, column) == other:
        raise UsageError(f"'{given}': both sides are the same; name two")
    return Pairs(given, _file(path, column, errors), _file(*other, errors))


def _side(text: str) -> tuple[str, str | None]:
    """The path of a side, and its column if it is one of a table."""
    path, colon, column = text.rpartition(":")
    if not colon or os.path.lexists(os.path.expanduser(text)):  # noqa: PTH111
        return text, None
    return path, column


def _file(path: str, column: str | None, errors: Errors) -> File:
    """A finder of its own for each: what is looked for is not the same, and a table may be both sides."""
    kind, files = Finder("line" if column is None else "field", column, errors).files(path)
    if kind != "file":
        raise UsageError(f"'{path}': a {kind}; a side of a pair is one file, or a column of one")
    return files[0]


def _rows(file: File, errors: Errors, counts: Counter[str]) -> Iterator[str]:
    """The text of every row, blank ones too."""
    if file.format.kind != "text":
        yield from (text for text, _ in file.rows(WHOLE, errors, counts))
        return
    rest, number = "", 0
    for chunk in file.text(WHOLE, errors, counts):  # `split` would leave out blank lines at the end
        *whole, rest = (rest + chunk).split("\n")
        yield from whole
        number += len(whole)
        if len(rest) > LONGEST:
            raise DataError(
                f"{file.name}:{number + 1}: a line of more than {LONGEST:,} characters is too long for a pair"
            )
    if rest:
        yield rest
