"""Corpus items: files, built-in corpora and Hub datasets with one interface, readable from any process.

A `FileSnapshot` has the sizes and modification times of their files, to detect changes since they were opened:

    snapshot = FileSnapshot(corpus.list_stamps())
    with snapshot.guard():      # hash, then read; raises a DataError if a file changed in between
        ...
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pretune.core.errors import DataError
from pretune.core.io import sha256
from pretune.text.corpora.document import MAX_CHARACTERS, Document, FileFormat, split_pieces
from pretune.text.corpora.streams import Errors, decode, find_cut_points, read_chunks
from pretune.text.corpora.tables import (
    SEPARATORS,
    plan_parquet_spans,
    read_delimited,
    read_jsonl,
    read_parquet,
    split_documents,
)

Stamp = tuple[str, int, int]
"""Path, size in bytes and modification time in nanoseconds of a file."""


def stamp_file(path: str | os.PathLike[str]) -> Stamp:
    """Return the current stamp of a file."""
    status = Path(path).stat()
    return os.fspath(path), status.st_size, status.st_mtime_ns


class FileSnapshot:
    """Stamps of files, to compare with later ones."""

    def __init__(self, stamps: Iterable[Stamp]) -> None:
        self._stamps = list(stamps)

    def check(self) -> None:
        """Raise a DataError for the first file that changed or is missing."""
        for stamp in self._stamps:
            path, size, _ = stamp
            try:
                current_stamp = stamp_file(path)
            except OSError as fault:
                raise DataError(f"{path}: can no longer be read: {fault.strerror}") from None
            if current_stamp != stamp:
                size_change = f"its size from {size:,} to {current_stamp[1]:,} bytes"
                change = "its modification time" if current_stamp[1] == size else size_change
                raise DataError(
                    f"{path}: changed while it was read ({change}); run the command again when the file is complete"
                )

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Check at the end of a block and when it fails, since a changed file may be the reason."""
        try:
            yield
        except (DataError, OSError):
            self.check()
            raise
        self.check()


Span = tuple[int, int | None, int]
"""First byte, byte to stop before (None: the end) and number of the first line; for Parquet, row groups and rows."""

FULL_SPAN: Span = (0, None, 1)


class CorpusItem(Protocol):
    """Source of documents; it holds only names and numbers, so it can be sent to another process."""

    @property
    def name(self) -> str:
        """Name in messages."""

    @property
    def bytes(self) -> int | None:
        """Size on disk, or None if unknown."""

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        """Yield the documents in order; skipped ones are counted."""

    def plan_spans(self, n_bytes: int) -> list[Span]:
        """Return spans of about `n_bytes` that start and end with documents; one span if it cannot be split."""

    def compute_identity(self) -> list[object]:
        """Return JSON values that identify the item: names, settings and the hash of its content."""

    def list_stamps(self) -> Iterable[Stamp]:
        """Return the stamps of its files, as of opening."""


class WholeItem:
    """Item that one process reads as a whole."""

    __slots__ = ()

    def plan_spans(self, n_bytes: int) -> list[Span]:
        return [FULL_SPAN]


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file with its format."""

    path: str
    name: str
    bytes: int
    modified_ns: int  # modification time
    format: FileFormat

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        if self.format.kind == "text":
            text = self.read_text(span, errors, counts)
            return _split_plain_text(text, SEPARATORS[self.format.unit], source, self.name, span[2], counts)
        location = f"{self.name}:row " if self.format.kind == "parquet" else f"{self.name}:"
        return make_documents(self.read_rows(span, errors, counts), source, location, counts)

    def read_rows(self, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[tuple[str, int]]:
        """Yield (text, number) of every row of a table, including blank ones."""
        file_format, (start, stop, line) = self.format, span
        assert file_format.field is not None
        if file_format.kind == "parquet":
            return read_parquet(self.path, file_format.field, self.name, start, stop, line)
        text = self.read_text(span, errors, counts)
        if file_format.kind == "jsonl":
            return read_jsonl(text, file_format.field, self.name, line, errors, counts)
        assert file_format.delimited_format is not None
        return read_delimited(text, file_format.delimited_format, file_format.field, self.name)

    def read_text(
        self, span: Span, errors: Errors, counts: Counter[str], *, lone_carriage: str = "\n"
    ) -> Iterator[str]:
        """Yield the decoded text of a text or table file, in chunks."""
        file_format, (start, stop, _) = self.format, span
        if file_format.compression:
            data = read_chunks(self.path, self.name, file_format.compression)
        else:
            end = self.bytes if stop is None else stop
            data = _check_complete(read_chunks(self.path, self.name, "", start, end), end - start, self.name)
        skip = 0 if start else file_format.bom_bytes
        return decode(data, file_format.encoding, self.name, errors, counts, skip, start, lone_carriage=lone_carriage)

    def plan_spans(self, n_bytes: int) -> list[Span]:
        file_format = self.format
        if file_format.kind == "parquet":
            return plan_parquet_spans(self.path, self.name, n_bytes)
        separator = "\n" if file_format.kind == "jsonl" else SEPARATORS.get(file_format.unit, "")
        if not separator or file_format.compression or file_format.encoding != "utf-8" or self.bytes <= n_bytes:
            return [FULL_SPAN]
        return find_cut_points(self.path, self.name, separator, n_bytes)

    def compute_identity(self) -> list[object]:
        settings = (self.format.kind, self.format.unit, self.format.encoding, self.format.field)
        return [self.name, self.bytes, sha256(self.path), *settings]

    def list_stamps(self) -> list[Stamp]:
        return [(self.path, self.bytes, self.modified_ns)]


def _check_complete(data: Iterable[bytes], size: int, name: str) -> Iterator[bytes]:
    """Yield chunks that must have `size` bytes together: fewer mean that the file was truncated since it was opened."""
    for chunk in data:
        yield chunk
        size -= len(chunk)
    if size:
        raise DataError(f"{name}: is {size:,} bytes shorter than when it was opened; run the command again")


def make_documents(
    texts: Iterable[tuple[str, int]], source: int, location: str, counts: Counter[str]
) -> Iterator[Document]:
    """Build documents from texts and their numbers; blank ones are counted, long ones come in pieces."""
    for text, number in texts:
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = text.strip("\n")
        if not text or text.isspace():
            counts["empty_documents"] += 1
        elif len(text) <= MAX_CHARACTERS:
            yield Document(text, source, f"{location}{number}")
        else:
            for piece, is_continued in split_pieces(text):
                yield Document(piece, source, f"{location}{number}", is_continued)


def _split_plain_text(
    chunks: Iterable[str], separator: str, source: int, name: str, line: int, counts: Counter[str]
) -> Iterator[Document]:
    is_open = False  # the previous piece is continued
    for text, number, is_continued in split_documents(chunks, separator, line):
        if not is_open and (not text or text.isspace()):
            # An empty line is not a document and not counted; nor is white space before a very long document.
            counts["empty_documents"] += bool(text) and not is_continued
            continue
        yield Document(text, source, f"{name}:{number}", is_continued)
        is_open = is_continued
