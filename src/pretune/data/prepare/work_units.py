"""Units of work: about a megabyte of text each, the same whoever does them.

Text whose size is known and small is named by its place and read by the process that works on it. All other text
(compressed, in tables of unknown size, in one long line) is read here, a unit at a time, so that a single large file
keeps every process busy and no process ever holds more than a unit.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pretune.core.errors import UsageError
from pretune.text.corpora import Corpus, CorpusPart, Document
from pretune.text.corpora.document import split_pieces
from pretune.text.corpora.items import CorpusFile

UNIT_BYTES = 2**20
"""Bytes after which a unit ends."""

_MAX_PART_BYTES = (
    4 * UNIT_BYTES
)  # a part above this is read here; far below LONGEST, so that no document in a part comes in pieces
_COMPRESSION_RATIO = 4  # a guess of how much text a compressed byte holds; for the progress only


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnit:
    """Some documents of a split: where to find them, or their texts."""

    parts: tuple[CorpusPart, ...] = ()
    texts: tuple[tuple[str, ...], ...] = ()  # of one source, each with its sides; `Document` would cost more to send
    source: int = 0
    location: str  # the place of the first document, for messages
    valid: bool  # they are validation data by choice of the user
    size: int  # bytes on the disk, roughly
    is_continuation: bool = False  # the document, which is the only one, began in an earlier unit,
    is_unfinished: bool = False  # or goes on in the next one

    def iter_documents(self, counts: Counter[str]) -> Iterator[tuple[int, Iterator[tuple[str, ...]]]]:
        """The source of every part, and the text or two sides of its documents; what readers leave out is counted."""
        if self.texts:
            yield self.source, iter(self.texts)
        for part in self.parts:
            yield part.source, (document.sides for document in part.read_documents(counts))


@dataclass(frozen=True, slots=True)
class SplitPart:
    """A part of a corpus, and which split it was given for."""

    part: CorpusPart
    valid: bool
    size: int  # bytes on the disk, roughly

    @property
    def text_bytes(self) -> int:
        """Bytes of text, roughly."""
        return self.size * _get_compression_ratio(self.part)


def list_parts(corpus: Corpus, valid: Corpus | None) -> list[SplitPart]:
    """Everything there is to do, in order: validation text first, so that training text can be checked against it."""
    parts: list[SplitPart] = []
    if valid is not None:
        parts += _iter_parts(valid, True, len(corpus.sources))
    return [*parts, *_iter_parts(corpus, False, 0)]


def select_slice(parts: Sequence[SplitPart], number: int, count: int) -> list[SplitPart]:
    """The `number`th of `count` contiguous slices (from 1) of about equal size."""
    if not 1 <= number <= count:
        raise UsageError(f"shard must be i/n with i from 1 to n, got {number}/{count}")
    total, offset, mine = sum(place.size for place in parts) or 1, 0, list[SplitPart]()
    for place in parts:
        middle = offset + place.size / 2
        if min(int(middle * count / total), count - 1) == number - 1:
            mine.append(place)
        offset += place.size
    return mine


def iter_units(parts: Sequence[SplitPart], counts: Counter[str]) -> Iterator[WorkUnit]:
    """The work in order; what the readers leave out of what is read here is counted."""
    waiting: list[SplitPart] = []
    for place in parts:
        max_bytes = get_max_text_bytes(place.part)
        small = max_bytes is not None and max_bytes <= _MAX_PART_BYTES
        full = sum(part.size for part in waiting) >= UNIT_BYTES
        if waiting and (full or not small or waiting[0].valid != place.valid):
            yield _build_named_unit(waiting)
            waiting = []
        if small:
            waiting.append(place)
        else:
            yield from _read_units(place, counts)
    if waiting:
        yield _build_named_unit(waiting)


def _iter_parts(corpus: Corpus, valid: bool, shift: int) -> Iterator[SplitPart]:
    parts = corpus.plan_parts(UNIT_BYTES)
    shares = Counter(id(part.item) for part in parts)
    for part in parts:
        size = get_max_text_bytes(part)
        if size is None:
            size = (part.item.bytes or 0) // shares[id(part.item)]
        yield SplitPart(replace(part, source=part.source + shift), valid, max(size, 1))


def get_max_text_bytes(part: CorpusPart) -> int | None:
    """The most bytes of text a part can have; None where its size on the disk says nothing about it."""
    item, (start, stop, _) = part.item, part.span
    if not isinstance(item, CorpusFile) or item.format.compression or item.format.kind == "parquet":
        return None
    return (item.bytes if stop is None else stop) - start


def _get_compression_ratio(part: CorpusPart) -> int:
    return _COMPRESSION_RATIO if get_max_text_bytes(part) is None else 1


def _build_named_unit(group: Sequence[SplitPart]) -> WorkUnit:
    parts = tuple(place.part for place in group)
    return WorkUnit(
        parts=parts, location=parts[0].item.name, valid=group[0].valid, size=sum(place.size for place in group)
    )


def _split_long_documents(documents: Iterator[Document]) -> Iterator[Document]:
    """Documents, those that come in pieces in smaller ones, which need less memory and keep more processes busy."""
    open_ = False
    for document in documents:
        if document.is_continued or open_:
            for text, is_more in split_pieces(document.text, UNIT_BYTES):
                yield replace(document, text=text, is_continued=is_more or document.is_continued)
        else:
            yield document
        open_ = document.is_continued


def _read_units(place: SplitPart, counts: Counter[str]) -> Iterator[WorkUnit]:
    """The documents of a part that is large, or may be; a piece of a long one is a unit of its own."""
    left, size = place.size, 0
    pending: list[Document] = []
    open_ = False  # the last piece given goes on

    def unit() -> WorkUnit:
        nonlocal left, pending, size
        share = min(left, size // _get_compression_ratio(place.part))
        result = WorkUnit(
            texts=tuple(document.sides for document in pending),
            source=place.part.source,
            location=pending[0].location,
            valid=place.valid,
            size=share,
            is_continuation=open_,
            is_unfinished=pending[-1].is_continued,
        )
        left, pending, size = left - share, [], 0
        return result

    for document in _split_long_documents(place.part.read_documents(counts)):
        if pending and (document.is_continued or size >= UNIT_BYTES):
            yield unit()
        pending.append(document)
        size += sum(map(len, document.sides))
        if document.is_continued or open_:
            yield unit()
        open_ = document.is_continued
    if pending:
        yield unit()
