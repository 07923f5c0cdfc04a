"""Parallel text: two sides with the same number of rows, aligned row by row.

    pair:train.en,train.de          two files, aligned line by line; each may be compressed
    pair:captions.tsv:en,de         two columns of a table: JSONL, CSV, TSV or Parquet
    pair:ids.jsonl:en,train.de      a column and a file

A row that is blank on both sides is not a document; one that is blank on one side only is skipped and counted.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pretune.core.errors import DataError, UsageError
from pretune.text.corpora.document import MAX_CHARACTERS, Document
from pretune.text.corpora.file_discovery import FileFinder
from pretune.text.corpora.items import FULL_SPAN, CorpusFile, Span, Stamp
from pretune.text.corpora.streams import Errors

PREFIX = "pair:"
HALF_PAIRS = "half_pairs"
"""Name of the count of rows with one blank side."""


@dataclass(frozen=True, slots=True)
class ParallelFiles:
    """Two files with the same number of rows, or two columns of one."""

    name: str
    first: CorpusFile
    second: CorpusFile

    @property
    def bytes(self) -> int:
        return self.first.bytes + (self.second.bytes if self.second.path != self.first.path else 0)

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        sides = (_read_rows(self.first, errors, counts), _read_rows(self.second, errors, Counter()))
        for number, (first_text, second_text) in enumerate(itertools.zip_longest(*sides), 1):
            location = f"{self.name}:{number}"
            if first_text is None or second_text is None:
                short = self.first if first_text is None else self.second
                if not (first_text or second_text or "").strip():
                    continue  # blank lines at the end
                raise DataError(f"{location}: {short.name} has fewer rows; both sides need the same number")
            yield from make_pair_document(first_text, second_text, source, location, counts)

    def plan_spans(self, n_bytes: int) -> list[Span]:
        return [FULL_SPAN]

    def compute_identity(self) -> list[object]:
        return [self.name, self.first.compute_identity(), self.second.compute_identity()]

    def list_stamps(self) -> list[Stamp]:
        return [*self.first.list_stamps(), *self.second.list_stamps()]


def make_pair_document(first: str, second: str, source: int, location: str, counts: Counter[str]) -> Iterator[Document]:
    """Yield the document of a row if both of its sides have text."""
    texts = [text.replace("\r\n", "\n").replace("\r", "\n").strip("\n") for text in (first, second)]
    blank = [not text or text.isspace() for text in texts]
    if all(blank):
        counts["empty_documents"] += 1
    elif any(blank):
        counts[HALF_PAIRS] += 1
    elif max(map(len, texts)) > MAX_CHARACTERS:
        raise DataError(f"{location}: a side of a pair exceeds {MAX_CHARACTERS:,} characters; shorten it")
    else:
        yield Document(texts[0], source, location, pair=texts[1])


def open_pairs(address: str, errors: Errors) -> ParallelFiles:
    """Find and validate both sides of `pair:SIDE,SIDE`."""
    sides = address.removeprefix(PREFIX).split(",")
    if len(sides) != 2 or not all(sides):
        raise UsageError(f"'{address}': expected 'pair:FILE,FILE' or 'pair:TABLE:COLUMN,COLUMN'")
    path, column = _parse_side(sides[0])
    second_side = _parse_side(sides[1])
    if column is not None and second_side[1] is None and not os.path.lexists(second_side[0]):
        second_side = path, sides[1]  # a column of the same table
    if (path, column) == second_side:
        raise UsageError(f"'{address}': both sides are the same; name two")
    return ParallelFiles(address, _open_side(path, column, errors), _open_side(*second_side, errors))


def _parse_side(text: str) -> tuple[str, str | None]:
    """Return the path of a side, and its column if it is a table."""
    path, colon, column = text.rpartition(":")
    if not colon or os.path.lexists(os.path.expanduser(text)):  # noqa: PTH111
        return text, None
    return path, column


def _open_side(path: str, column: str | None, errors: Errors) -> CorpusFile:
    """Open one side with a separate finder: its settings differ, and one table may be both sides."""
    kind, files = FileFinder("line" if column is None else "field", column, errors).find_files(path)
    if kind != "file":
        raise UsageError(f"'{path}': it is a {kind}; a side of a pair must be one file, or a column of one")
    return files[0]


def _read_rows(file: CorpusFile, errors: Errors, counts: Counter[str]) -> Iterator[str]:
    """Yield the text of every row, including blank ones."""
    if file.format.kind != "text":
        yield from (text for text, _ in file.read_rows(FULL_SPAN, errors, counts))
        return
    rest, number = "", 0
    # NOTE: a carriage return inside a line must not shift all rows after it; `split_documents` would skip blank lines.
    for chunk in file.read_text(FULL_SPAN, errors, counts, lone_carriage=" "):
        *lines, rest = (rest + chunk).split("\n")
        yield from lines
        number += len(lines)
        if len(rest) > MAX_CHARACTERS:
            raise DataError(
                f"{file.name}:{number + 1}: the line exceeds {MAX_CHARACTERS:,} characters, too long for a pair"
            )
    if rest:
        yield rest
