"""Work units of about a megabyte of text, and their encoding in one process.

Units do not depend on the number of processes. A unit of small parts of known size contains file ranges, and the worker
process reads the text. All other parts, such as compressed files, Parquet tables and very long lines, are read in the
parent process, and their units contain the texts. So one large file occupies all workers, and no process holds more
than a unit.

A process reads, cleans, splits into sentences and tokenizes a unit to arrays. Long texts are tokenized in blocks that
end before a space. This bounds the memory for any tokenizer.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.data.prepare.settings import PrepareConfig
from pretune.text.cleaning import apply_filters, hash_content, resolve_filters
from pretune.text.corpora import Corpus, CorpusPart, Document, is_held_out
from pretune.text.corpora.document import split_pieces
from pretune.text.corpora.file_discovery import HALF_PAIRS
from pretune.text.corpora.items import CorpusFile
from pretune.text.language import guess_language
from pretune.text.neardup import NearDuplicates
from pretune.text.quality import QualityClassifier
from pretune.text.sentences import SPLITTERS
from pretune.text.tokenizer import Tokenizer

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
    def compression_ratio(self) -> int:
        """Estimated bytes of text per byte on disk."""
        return _COMPRESSION_RATIO if get_max_text_bytes(self.part) is None else 1

    @property
    def text_bytes(self) -> int:
        """Approximate bytes of text."""
        return self.size * self.compression_ratio


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


def _build_range_unit(group: Sequence[SplitPart]) -> WorkUnit:
    parts = tuple(split_part.part for split_part in group)
    size = sum(split_part.size for split_part in group)
    return WorkUnit(parts=parts, location=parts[0].item.name, valid=group[0].valid, size=size)


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
        unit_bytes = min(remaining_bytes, size // split_part.compression_ratio)
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


_BLOCK_CHARS = 2**19  # maximum characters of a text tokenized at once
_DETECTION_CHARS = 600  # characters used to detect the language
_DETECTION_INTERVAL = 8_000  # characters after which it is detected again

Ints = NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Chunk:
    """A work unit as arrays: T tokens, D documents, S sentences."""

    ids: NDArray[np.unsignedinteger]  # [T]
    ends: Ints  # [D] end of each document
    sides: Ints  # [D] number of tokens of the first side, 0 for documents with one side
    sentences: Ints  # [S] start of each sentence
    words: NDArray[np.uint8]  # [ceil(T / 8)] one bit per token: 1 if it starts a word
    sources: NDArray[np.uint16]  # [D] source number of each document
    keys: NDArray[np.uint64]  # [D, 2] 128-bit content hash
    is_held_out: NDArray[np.bool_]  # [D] in the validation split by hash or by `--valid`
    sizes: Ints  # [D] bytes of text
    signatures: NDArray[np.uint32] | None  # [D, permutations] MinHash signatures, with `near` only
    scores: NDArray[np.float32] | None  # [D] quality of each document, with a quality filter only
    is_unfinished: bool  # the last document continues in the next chunk
    counts: Counter[str]
    languages: Counter[str]  # characters per detected language
    size: int  # bytes of the unit on disk
    characters: int  # characters of text


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSetup:
    """Settings of an encoding process; picklable."""

    tokenizer: Path
    dtype: str
    settings: PrepareConfig  # with a `holdout` of 0 if the user gave validation text
    quality: QualityClassifier | None = None

    def start(self) -> Callable[[WorkUnit], Chunk]:
        """Load the tokenizer and the filters, and return the encoder."""
        return UnitEncoder(self)


class _UnitDocument(NamedTuple):
    """A document of a work unit, with one or two sides."""

    sides: tuple[str, ...]
    langs: tuple[str, ...]
    source: int


def _compute_bounds(documents: Sequence[_UnitDocument], lengths: Ints) -> tuple[Ints, Ints]:
    """Return the ends of documents [D] and the lengths of first sides [D] (0 for one side), given text lengths."""
    counts = np.array([len(document.sides) for document in documents], dtype=np.int64)
    last = np.cumsum(counts) - 1
    return np.cumsum(lengths)[last], np.where(counts == 2, lengths[last - 1], 0) if len(last) else last


def _find_half_empty(documents: Sequence[_UnitDocument], lengths: Ints) -> set[int]:
    """Return the documents with two sides of which exactly one has no tokens."""
    ends, firsts = _compute_bounds(documents, lengths)
    totals = np.diff(ends, prepend=0)
    two = np.array([len(document.sides) == 2 for document in documents], dtype=bool)
    return {*np.flatnonzero(two & (totals > 0) & ((firsts == 0) | (firsts == totals))).tolist()}


class UnitEncoder:
    """Converts work units to chunks. Stateless: a chunk depends on its unit and the setup only."""

    def __init__(self, setup: EncoderSetup) -> None:
        self._dtype, self._settings, self._quality = setup.dtype, setup.settings, setup.quality
        self._tokenizer = Tokenizer.load(setup.tokenizer)
        self._filters = [pair for name in setup.settings.clean for pair in resolve_filters(name)]
        near = setup.settings.near
        self._near_duplicates = None if near is None else NearDuplicates(near)
        self._splitter = SPLITTERS.get(setup.settings.sentences)

    def __call__(self, unit: WorkUnit) -> Chunk:
        counts, languages = Counter[str](), Counter[str]()
        piece = unit.is_unfinished or unit.is_continuation
        documents: list[_UnitDocument] = []
        characters = 0  # including dropped documents
        for source, run in unit.iter_documents(counts):
            detectors = [_LanguageDetector(self._settings.lang) for _ in ("first side", "second side")]
            for sides in run:
                characters += sum(map(len, sides))
                clean_sides = tuple(apply_filters(text, self._filters, counts) or "" for text in sides)
                if all(clean_sides) or piece:  # a dropped piece of a long document stays, empty
                    langs = tuple(lang.detect(text) for text, lang in zip(clean_sides, detectors, strict=False))
                    documents.append(_UnitDocument(clean_sides, langs, source))
                    for text, lang in zip(clean_sides, langs, strict=True):
                        languages[lang] += len(text)
                counts["documents"] += not unit.is_unfinished
        lengths, ids, words, begins = self._tokenise(documents)
        if half_pairs := _find_half_empty(documents, lengths):
            counts[HALF_PAIRS] += len(half_pairs)
            documents = [document for number, document in enumerate(documents) if number not in half_pairs]
            lengths, ids, words, begins = self._tokenise(documents)
        positions = self._find_sentences(documents, begins)
        if unit.is_continuation and len(positions) and positions[0] == 0:
            positions = positions[1:]  # the sentence starts in an earlier unit
        ends, firsts = _compute_bounds(documents, lengths)
        # Sides are joined by a NUL character, so another division is another string.
        wholes = ["\0".join(document.sides) for document in documents]
        return Chunk(
            ids=ids,
            ends=ends,
            sides=firsts,
            sentences=positions,
            words=np.packbits(words),
            sources=np.array([document.source for document in documents], dtype=np.uint16),
            keys=digests_to_keys(map(_hash_piece if piece else hash_content, wholes)),
            is_held_out=np.array(
                [unit.valid or is_held_out(text, self._settings.holdout) for text in wholes], dtype=bool
            ),
            sizes=np.array([len("".join(document.sides).encode()) for document in documents], dtype=np.int64),
            signatures=self._compute_signatures(wholes),
            scores=self._compute_scores(wholes),
            is_unfinished=unit.is_unfinished,
            counts=counts,
            languages=languages,
            size=unit.size,
            characters=characters,
        )

    def _tokenise(
        self, documents: Sequence[_UnitDocument]
    ) -> tuple[Ints, NDArray[np.unsignedinteger], NDArray[np.bool_], Ints]:
        """Return tokens per text, ids, word starts, and the start of each token in the concatenated texts."""
        texts = [text for document in documents for text in document.sides]
        blocks: list[str] = []
        owner: list[int] = []
        for number, text in enumerate(texts):
            for block, _ in split_pieces(text, _BLOCK_CHARS):
                blocks.append(block)
                owner.append(number)
        encoding = self._tokenizer.encode_batch(blocks, literal=True)  # '[MASK]' in a corpus is plain text
        per_block = np.diff(encoding.offsets)
        lengths = np.bincount(np.array(owner, dtype=np.int64), per_block, len(texts)).astype(np.int64)
        block_starts = np.cumsum([0, *map(len, blocks[:-1])]) if blocks else np.zeros(0, dtype=np.int64)
        begins = np.maximum.accumulate(encoding.starts + np.repeat(block_starts, per_block))
        return lengths, encoding.ids.astype(self._dtype), encoding.word_start, begins

    def _find_sentences(self, documents: Sequence[_UnitDocument], begins: Ints) -> Ints:
        """Return the indices of the tokens that start a sentence."""
        places: list[int] = []
        text_start = 0
        for text, lang in (pair for document in documents for pair in zip(document.sides, document.langs, strict=True)):
            for start in self._splitter(text, lang):
                # White space may belong to the next token or be a token itself: every token that starts after the last
                # character of the previous sentence belongs to this sentence.
                while start and text[start - 1].isspace():
                    start -= 1
                places.append(text_start + start)
            text_start += len(text)
        tokens = np.unique(np.searchsorted(begins, np.array(places, dtype=np.int64)))
        return tokens[tokens < len(begins)]

    def _compute_signatures(self, texts: list[str]) -> NDArray[np.uint32] | None:
        if self._near_duplicates is None:
            return None
        signatures = [self._near_duplicates.compute_signature(text) for text in texts]
        return np.array(signatures, dtype=np.uint32).reshape(len(texts), -1)

    def _compute_scores(self, texts: list[str]) -> NDArray[np.float32] | None:
        """Return the quality of each text; a long document has that of its first piece."""
        if self._quality is None:
            return None
        return np.array([self._quality.score(text) for text in texts], dtype=np.float32)


class _LanguageDetector:
    """Language of consecutive texts, detected again every `_DETECTION_INTERVAL` characters."""

    def __init__(self, lang: str) -> None:
        self._is_fixed = lang != "auto"
        self._lang, self._chars_since_detection = lang, _DETECTION_INTERVAL

    def detect(self, text: str) -> str:
        if not self._is_fixed and self._chars_since_detection >= _DETECTION_INTERVAL:
            self._lang, self._chars_since_detection = guess_language(text[:_DETECTION_CHARS]), 0
        self._chars_since_detection += len(text)
        return self._lang


def _hash_piece(text: str) -> bytes:
    """Return the hash of a piece of a long document; not normalized, because normalization needs much memory."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def digests_to_keys(digests: Iterable[bytes]) -> NDArray[np.uint64]:
    """Return digests of 128 bits as rows of two numbers."""
    return np.frombuffer(b"".join(digests), dtype=">u8").reshape(-1, 2).astype(np.uint64)
