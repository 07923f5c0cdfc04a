"""Work units of about a megabyte of text. They do not depend on the number of processes.

A unit of small parts of known size contains file ranges, and the worker process reads the text. All other parts,
such as compressed files, Parquet tables and very long lines, are read in the parent process, and their units contain
the texts. So one large file occupies all workers, and no process holds more than a unit.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pretune.core.errors import UsageError
from pretune.text.corpora import Corpus, CorpusPart, Document
from pretune.text.corpora.document import split_pieces
from pretune.text.corpora.items import CorpusFile

UNIT_BYTES = 2**20
"""Size in bytes at which a unit is complete."""

# Maximum size of a part that a worker reads. Less than `MAX_CHARACTERS`, so its documents are never split into pieces.
_MAX_PART_BYTES = 4 * UNIT_BYTES
_COMPRESSION_RATIO = 4  # estimated bytes of text per byte on disk, for parts of unknown text size


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnit:
    """Documents for one worker task: as file ranges (`parts`) or as texts (`texts`)."""

    parts: tuple[CorpusPart, ...] = ()
    texts: tuple[tuple[str, ...], ...] = ()  # sides of each document, of one source; pickles smaller than `Document`
    source: int = 0  # source number of `texts`
    location: str  # file or location of the first document, for messages
    valid: bool  # the user passed the text as validation text
    size: int  # approximate bytes on disk
    is_continuation: bool = False  # the unit is a piece of a document that starts in an earlier unit
    is_unfinished: bool = False  # the unit is a piece of a document that continues in the next unit

    def iter_documents(self, counts: Counter[str]) -> Iterator[tuple[int, Iterator[tuple[str, ...]]]]:
        """Yield the source number of each part and the sides of its documents; add skipped documents to `counts`."""
        if self.texts:
            yield self.source, iter(self.texts)
        for part in self.parts:
            yield part.source, (document.sides for document in part.read_documents(counts))


@dataclass(frozen=True, slots=True)
class SplitPart:
    """A part of the training or validation corpus."""

    part: CorpusPart
    valid: bool  # part of the validation corpus
    size: int  # approximate bytes on disk

    @property
    def text_bytes(self) -> int:
        """Approximate bytes of text."""
        return self.size * _get_compression_ratio(self.part)


def list_parts(corpus: Corpus, valid: Corpus | None) -> list[SplitPart]:
    """Return all parts in order: validation text first, so that its duplicates in the training text are dropped."""
    parts: list[SplitPart] = []
    if valid is not None:
        parts += _iter_parts(valid, True, len(corpus.sources))
    return [*parts, *_iter_parts(corpus, False, 0)]


def select_slice(parts: Sequence[SplitPart], number: int, count: int) -> list[SplitPart]:
    """Return slice `number` (from 1) of `count` contiguous slices of about equal size."""
    if not 1 <= number <= count:
        raise UsageError(f"shard must be i/n with i from 1 to n, got {number}/{count}")
    total, offset = sum(split_part.size for split_part in parts) or 1, 0
    slice_parts: list[SplitPart] = []
    for split_part in parts:
        middle = offset + split_part.size / 2
        if min(int(middle * count / total), count - 1) == number - 1:
            slice_parts.append(split_part)
        offset += split_part.size
    return slice_parts


def iter_units(parts: Sequence[SplitPart], counts: Counter[str]) -> Iterator[WorkUnit]:
    """Yield the units in order; add documents skipped in this process to `counts`."""
    group: list[SplitPart] = []
    for split_part in parts:
        max_bytes = get_max_text_bytes(split_part.part)
        is_small = max_bytes is not None and max_bytes <= _MAX_PART_BYTES
        is_full = sum(member.size for member in group) >= UNIT_BYTES
        if group and (is_full or not is_small or group[0].valid != split_part.valid):
            yield _build_range_unit(group)
            group = []
        if is_small:
            group.append(split_part)
        else:
            yield from _read_units(split_part, counts)
    if group:
        yield _build_range_unit(group)


def _iter_parts(corpus: Corpus, valid: bool, shift: int) -> Iterator[SplitPart]:
    parts = corpus.plan_parts(UNIT_BYTES)
    parts_per_item = Counter(id(part.item) for part in parts)
    for part in parts:
        size = get_max_text_bytes(part)
        if size is None:
            size = (part.item.bytes or 0) // parts_per_item[id(part.item)]
        yield SplitPart(replace(part, source=part.source + shift), valid, max(size, 1))


def get_max_text_bytes(part: CorpusPart) -> int | None:
    """Return the maximum bytes of text in a part; None for compressed files, Parquet and items that are not files."""
    item, (start, stop, _) = part.item, part.span
    if not isinstance(item, CorpusFile) or item.format.compression or item.format.kind == "parquet":
        return None
    return (item.bytes if stop is None else stop) - start


def _get_compression_ratio(part: CorpusPart) -> int:
    return _COMPRESSION_RATIO if get_max_text_bytes(part) is None else 1


def _build_range_unit(group: Sequence[SplitPart]) -> WorkUnit:
    parts = tuple(split_part.part for split_part in group)
    return WorkUnit(
        parts=parts,
        location=parts[0].item.name,
        valid=group[0].valid,
        size=sum(split_part.size for split_part in group),
    )


def _split_long_documents(documents: Iterator[Document]) -> Iterator[Document]:
    """Yield documents; split the pieces of long documents into units, for less memory and more parallelism."""
    is_open = False
    for document in documents:
        if document.is_continued or is_open:
            for text, is_more in split_pieces(document.text, UNIT_BYTES):
                yield replace(document, text=text, is_continued=is_more or document.is_continued)
        else:
            yield document
        is_open = document.is_continued


def _read_units(split_part: SplitPart, counts: Counter[str]) -> Iterator[WorkUnit]:
    """Read a large part, or one of unknown size, and yield its units. Each piece of a long document is one unit."""
    remaining_bytes, size = split_part.size, 0
    pending: list[Document] = []
    is_open = False  # the document of the last unit continues

    def build_unit() -> WorkUnit:
        nonlocal remaining_bytes, pending, size
        unit_bytes = min(remaining_bytes, size // _get_compression_ratio(split_part.part))
        result = WorkUnit(
            texts=tuple(document.sides for document in pending),
            source=split_part.part.source,
            location=pending[0].location,
            valid=split_part.valid,
            size=unit_bytes,
            is_continuation=is_open,
            is_unfinished=pending[-1].is_continued,
        )
        remaining_bytes, pending, size = remaining_bytes - unit_bytes, [], 0
        return result

    for document in _split_long_documents(split_part.part.read_documents(counts)):
        if pending and (document.is_continued or size >= UNIT_BYTES):
            yield build_unit()
        pending.append(document)
        size += sum(map(len, document.sides))
        if document.is_continued or is_open:
            yield build_unit()
        is_open = document.is_continued
    if pending:
        yield build_unit()
