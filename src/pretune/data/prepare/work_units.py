"""Units of work: about a megabyte of text each, the same whoever does them.

Text whose size is known and small is named by its place and read by the process that works on it. All other text
(compressed, in tables of unknown size, in one long line) is read here, a unit at a time, so that a single large file
keeps every process busy and no process ever holds more than a unit.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pretune.core.errors import UsageError
from pretune.text.corpora import Corpus, Document, Part
from pretune.text.corpora.document import pieces
from pretune.text.corpora.items import File

UNIT = 2**20
"""Bytes after which a unit ends."""

_LARGE = 4 * UNIT  # a part above this is read here; far below LONGEST, so that no document in a part comes in pieces
_PACKED = 4  # a guess of how much text a compressed byte holds; for the progress only


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Some documents of a split: where to find them, or their texts."""

    parts: tuple[Part, ...] = ()
    texts: tuple[tuple[str, ...], ...] = ()  # of one source, each with its sides; `Document` would cost more to send
    source: int = 0
    where: str  # the place of the first document, for messages
    valid: bool  # they are validation data by choice of the user
    size: int  # bytes on the disk, roughly
    continues: bool = False  # the document, which is the only one, began in an earlier unit,
    more: bool = False  # or goes on in the next one

    def runs(self, counts: Counter[str]) -> Iterator[tuple[int, Iterator[tuple[str, ...]]]]:
        """The source of every part, and the text or two sides of its documents; what readers leave out is counted."""
        if self.texts:
            yield self.source, iter(self.texts)
        for part in self.parts:
            yield part.source, (document.sides for document in part.documents(counts))


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a corpus, and which split it was given for."""

    part: Part
    valid: bool
    size: int  # bytes on the disk, roughly

    @property
    def text(self) -> int:
        """Bytes of text, roughly."""
        return self.size * _packed(self.part)


def places(corpus: Corpus, valid: Corpus | None) -> list[Place]:
    """Everything there is to do, in order: validation text first, so that training text can be checked against it."""
    found: list[Place] = []
    if valid is not None:
        found += _places(valid, True, len(corpus.sources))
    return [*found, *_places(corpus, False, 0)]


def slice_of(found: Sequence[Place], number: int, count: int) -> list[Place]:
    """The `number`th of `count` contiguous slices (from 1) of about equal size."""
    if not 1 <= number <= count:
        raise UsageError(f"the shard is i/n with i from 1 to n, found {number}/{count}")
    total, done, mine = sum(place.size for place in found) or 1, 0, list[Place]()
    for place in found:
        middle = done + place.size / 2
        if min(int(middle * count / total), count - 1) == number - 1:
            mine.append(place)
        done += place.size
    return mine


def units(found: Sequence[Place], counts: Counter[str]) -> Iterator[Unit]:
    """The work in order; what the readers leave out of what is read here is counted."""
    waiting: list[Place] = []
    for place in found:
        known = text_size(place.part)
        small = known is not None and known <= _LARGE
        full = sum(one.size for one in waiting) >= UNIT
        if waiting and (full or not small or waiting[0].valid != place.valid):
            yield _named(waiting)
            waiting = []
        if small:
            waiting.append(place)
        else:
            yield from _read(place, counts)
    if waiting:
        yield _named(waiting)


def _places(corpus: Corpus, valid: bool, shift: int) -> Iterator[Place]:
    parts = corpus.parts(UNIT)
    shares = Counter(id(part.item) for part in parts)
    for part in parts:
        size = text_size(part)
        if size is None:
            size = (part.item.bytes or 0) // shares[id(part.item)]
        yield Place(replace(part, source=part.source + shift), valid, max(size, 1))


def text_size(part: Part) -> int | None:
    """The most bytes of text a part can have; None where its size on the disk says nothing about it."""
    item, (start, stop, _) = part.item, part.span
    if not isinstance(item, File) or item.format.compression or item.format.kind == "parquet":
        return None
    return (item.bytes if stop is None else stop) - start


def _packed(part: Part) -> int:
    return _PACKED if text_size(part) is None else 1


def _named(group: Sequence[Place]) -> Unit:
    parts = tuple(place.part for place in group)
    return Unit(parts=parts, where=parts[0].item.name, valid=group[0].valid, size=sum(place.size for place in group))


def _finer(documents: Iterator[Document]) -> Iterator[Document]:
    """Documents, those that come in pieces in smaller ones, which need less memory and keep more processes busy."""
    open_ = False
    for document in documents:
        if document.more or open_:
            for text, more in pieces(document.text, UNIT):
                yield replace(document, text=text, more=more or document.more)
        else:
            yield document
        open_ = document.more


def _read(place: Place, counts: Counter[str]) -> Iterator[Unit]:
    """The documents of a part that is large, or may be; a piece of a long one is a unit of its own."""
    left, size = place.size, 0
    held: list[Document] = []
    open_ = False  # the last piece given goes on

    def unit() -> Unit:
        nonlocal left, held, size
        share = min(left, size // _packed(place.part))
        made = Unit(
            texts=tuple(document.sides for document in held),
            source=place.part.source,
            where=held[0].where,
            valid=place.valid,
            size=share,
            continues=open_,
            more=held[-1].more,
        )
        left, held, size = left - share, [], 0
        return made

    for document in _finer(place.part.documents(counts)):
        if held and (document.more or size >= UNIT):
            yield unit()
        held.append(document)
        size += sum(map(len, document.sides))
        if document.more or open_:
            yield unit()
        open_ = document.more
    if held:
        yield unit()
