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
from pretune.text.corpora.document import MAX_CHARACTERS, Document
from pretune.text.corpora.file_discovery import FileFinder
from pretune.text.corpora.items import FULL_SPAN, CorpusFile, Span
from pretune.text.corpora.snapshot import Stamp

PREFIX = "pair:"
HALF_PAIRS = "half_pairs"
"""What a row with one blank side is counted as."""


@dataclass(frozen=True, slots=True)
class ParallelFiles:
    """Two files of equally many rows, or two columns of one."""

    name: str
    first: CorpusFile
    second: CorpusFile

    @property
    def bytes(self) -> int:
        return self.first.bytes + (self.second.bytes if self.second.path != self.first.path else 0)

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        sides = (_read_rows(self.first, errors, counts), _read_rows(self.second, errors, Counter()))
        for number, (one, other) in enumerate(itertools.zip_longest(*sides), 1):
            where = f"{self.name}:{number}"
            if one is None or other is None:
                short = self.first if one is None else self.second
                if not (one or other or "").strip():
                    continue  # blank lines at the end
                raise DataError(f"{where}: {short.name} ends before this row; the two sides must have equally many")
            yield from make_pair_document(one, other, source, where, counts)

    def plan_spans(self, n_bytes: int) -> list[Span]:
        return [FULL_SPAN]

    def compute_identity(self) -> list[object]:
        return [self.name, self.first.compute_identity(), self.second.compute_identity()]

    def list_stamps(self) -> list[Stamp]:
        return [*self.first.list_stamps(), *self.second.list_stamps()]


def make_pair_document(first: str, second: str, source: int, location: str, counts: Counter[str]) -> Iterator[Document]:
    """The document of a row, if both of its sides have text."""
    texts = [text.replace("\r\n", "\n").replace("\r", "\n").strip("\n") for text in (first, second)]
    blank = [not text or text.isspace() for text in texts]
    if all(blank):
        counts["empty_documents"] += 1
    elif any(blank):
        counts[HALF_PAIRS] += 1
    elif max(map(len, texts)) > MAX_CHARACTERS:
        raise DataError(f"{location}: a side of more than {MAX_CHARACTERS:,} characters is too long for a pair; cut it")
    else:
        yield Document(texts[0], source, location, pair=texts[1])


def open_pairs(address: str, errors: Errors) -> ParallelFiles:
    """Find and check both sides of `pair:SIDE,SIDE`."""
    sides = address.removeprefix(PREFIX).split(",")
    if len(sides) != 2 or not all(sides):
        raise UsageError(f"'{address}': expected 'pair:FILE,FILE' or 'pair:TABLE:COLUMN,COLUMN'")
    path, column = _parse_side(sides[0])
    other = _parse_side(sides[1])
    if column is not None and other[1] is None and not os.path.lexists(other[0]):
        other = path, sides[1]  # a column of the same table
    if (path, column) == other:
        raise UsageError(f"'{address}': both sides are the same; name two")
    return ParallelFiles(address, _open_side(path, column, errors), _open_side(*other, errors))


def _parse_side(text: str) -> tuple[str, str | None]:
    """The path of a side, and its column if it is one of a table."""
    path, colon, column = text.rpartition(":")
    if not colon or os.path.lexists(os.path.expanduser(text)):  # noqa: PTH111
        return text, None
    return path, column


def _open_side(path: str, column: str | None, errors: Errors) -> CorpusFile:
    """A finder of its own for each: what is looked for is not the same, and a table may be both sides."""
    kind, files = FileFinder("line" if column is None else "field", column, errors).find_files(path)
    if kind != "file":
        raise UsageError(f"'{path}': a {kind}; a side of a pair is one file, or a column of one")
    return files[0]


def _read_rows(file: CorpusFile, errors: Errors, counts: Counter[str]) -> Iterator[str]:
    """The text of every row, blank ones too."""
    if file.format.kind != "text":
        yield from (text for text, _ in file.read_rows(FULL_SPAN, errors, counts))
        return
    rest, number = "", 0
    for chunk in file.read_text(FULL_SPAN, errors, counts):  # `split` would leave out blank lines at the end
        *whole, rest = (rest + chunk).split("\n")
        yield from whole
        number += len(whole)
        if len(rest) > MAX_CHARACTERS:
            raise DataError(
                f"{file.name}:{number + 1}: a line of more than {MAX_CHARACTERS:,} characters is too long for a pair"
            )
    if rest:
        yield rest
