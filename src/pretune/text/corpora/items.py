"""What a source is made of: files, built-in corpora and Hub data sets, all read the same way and from any process."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pretune.core.errors import DataError
from pretune.core.io import sha256
from pretune.text.corpora.decoding import Errors, decode
from pretune.text.corpora.document import MAX_CHARACTERS, Document, split_pieces
from pretune.text.corpora.file_ranges import find_cut_points
from pretune.text.corpora.formats import FileFormat
from pretune.text.corpora.parquet import plan_parquet_spans, read_parquet
from pretune.text.corpora.snapshot import Stamp
from pretune.text.corpora.splitting import SEPARATORS, split_documents
from pretune.text.corpora.streams import read_chunks
from pretune.text.corpora.tables import read_delimited, read_jsonl

Span = tuple[int, int | None, int]
"""First byte, byte to stop before (None: the end) and number of the first line; of Parquet, row groups and rows."""

FULL_SPAN: Span = (0, None, 1)


class CorpusItem(Protocol):
    """Something that gives documents; it holds names and numbers only, so it can be sent to another process."""

    @property
    def name(self) -> str:
        """What to call it in messages."""

    @property
    def bytes(self) -> int | None:
        """Its size on the disk, or None where nobody knows."""

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        """Its documents in their order; what is left out is counted."""

    def plan_spans(self, n_bytes: int) -> list[Span]:
        """Stretches of about `n_bytes` that begin and end with documents; one where it cannot be cut."""

    def compute_identity(self) -> list[object]:
        """What makes it this and no other: names, settings and the hash of its content; JSON values."""

    def list_stamps(self) -> Iterable[Stamp]:
        """The files it is read from, as they were when it was opened."""


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file, and how to read it."""

    path: str
    name: str
    bytes: int
    modified_ns: int  # nanoseconds
    format: FileFormat

    def read_documents(self, source: int, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[Document]:
        if self.format.kind == "text":
            text = self.read_text(span, errors, counts)
            return _split_plain_text(text, SEPARATORS[self.format.unit], source, self.name, span[2], counts)
        where = f"{self.name}:row " if self.format.kind == "parquet" else f"{self.name}:"
        return make_documents(self.read_rows(span, errors, counts), source, where, counts)

    def read_rows(self, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[tuple[str, int]]:
        """(text, number) of every row of a table, blank ones too."""
        how, (start, stop, line) = self.format, span
        assert how.field is not None
        if how.kind == "parquet":
            return read_parquet(self.path, how.field, self.name, start, stop, line)
        text = self.read_text(span, errors, counts)
        if how.kind == "jsonl":
            return read_jsonl(text, how.field, self.name, line, errors, counts)
        assert how.delimited_format is not None
        return read_delimited(text, how.delimited_format, how.field, self.name)

    def read_text(self, span: Span, errors: Errors, counts: Counter[str]) -> Iterator[str]:
        """What a file of text or rows holds, decoded, a chunk at a time."""
        how, (start, stop, _) = self.format, span
        if how.compression:
            data = read_chunks(self.path, self.name, how.compression)
        else:
            end = self.bytes if stop is None else stop
            data = _check_complete(read_chunks(self.path, self.name, "", start, end), end - start, self.name)
        return decode(data, how.encoding, self.name, errors, counts, 0 if start else how.bom_bytes, start)

    def plan_spans(self, n_bytes: int) -> list[Span]:
        how = self.format
        if how.kind == "parquet":
            return plan_parquet_spans(self.path, self.name, n_bytes)
        separator = "\n" if how.kind == "jsonl" else SEPARATORS.get(how.unit, "")
        if not separator or how.compression or how.encoding != "utf-8" or self.bytes <= n_bytes:
            return [FULL_SPAN]
        return find_cut_points(self.path, self.name, separator, n_bytes)

    def compute_identity(self) -> list[object]:
        how = self.format
        return [self.name, self.bytes, sha256(self.path), how.kind, how.unit, how.encoding, how.field]

    def list_stamps(self) -> list[Stamp]:
        return [(self.path, self.bytes, self.modified_ns)]


def _check_complete(data: Iterable[bytes], size: int, name: str) -> Iterator[bytes]:
    """Chunks that must hold `size` bytes together: fewer mean that the file was truncated since it was opened."""
    for chunk in data:
        yield chunk
        size -= len(chunk)
    if size:
        raise DataError(f"{name}: ends {size:,} bytes earlier than when it was opened; run the command again")


def make_documents(
    texts: Iterable[tuple[str, int]], source: int, location: str, counts: Counter[str]
) -> Iterator[Document]:
    """Documents out of whole texts and their numbers; blank ones are counted, long ones come in pieces."""
    for text, number in texts:
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = text.strip("\n")
        if not text or text.isspace():
            counts["empty_documents"] += 1
        elif len(text) <= MAX_CHARACTERS:
            yield Document(text, source, f"{location}{number}")
        else:
            for piece, more in split_pieces(text):
                yield Document(piece, source, f"{location}{number}", more)


def _split_plain_text(
    chunks: Iterable[str], separator: str, source: int, name: str, line: int, counts: Counter[str]
) -> Iterator[Document]:
    open_ = False  # whether a piece was given that goes on
    for text, number, more in split_documents(chunks, separator, line):
        if not open_ and (not text or text.isspace()):
            # An empty line is no document, so it is not counted; nor is the white space before a very long document.
            counts["empty_documents"] += bool(text) and not more
            continue
        yield Document(text, source, f"{name}:{number}", more)
        open_ = more
