"""Samples: documents, sentences, blocks or pairs of segments, as ranges of the shards.

    samples = Documents(limit=512).open(shards, template)
    samples.lengths()                  # [n] length of every sample, special tokens included; reads no tokens
    samples.cut(draws)                 # the `Sequences` of draws

A limit includes the special tokens. Every token of the shards is in exactly one sample: text over the limit is split,
and the last, shorter part is kept.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.data.sampling import EpochOrder, SampleLengths
from pretune.data.sequences import Ints, Sequences, compute_offsets, compute_starts, split_windows, spread
from pretune.data.shards import Shards
from pretune.text.template import SequencePieces, TokenTemplate


@dataclass(frozen=True)
class Samples:
    """Base class: samples of one kind over shards. Pickling omits the tables, which the receiver computes again."""

    kind: Any
    shards: Shards
    template: TokenTemplate

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.shards, self.template)

    def __len__(self) -> int:
        return len(self._table[0])

    @cached_property
    def _table(self) -> tuple[Ints, ...]:
        """Columns of n values; the first is the position of the first token in the shards."""
        raise NotImplementedError

    @cached_property
    def sources(self) -> Ints:
        """[n] Source of the document in which each sample starts."""
        documents = np.searchsorted(self.shards.documents, self._table[0], side="right") - 1
        return self.shards.sources[documents].astype(np.int64)

    def assign_partners(self, draws: EpochOrder) -> EpochOrder:
        """Return the draws with sampled partners and labels, for samples that have them; call it before `lengths`."""
        return draws

    def lengths(self, draws: EpochOrder | None = None) -> Ints:
        """Return the length of each draw, or of each sample if `draws` is None."""
        return self.measure_lengths(draws).lengths

    def measure_lengths(self, draws: EpochOrder | None = None) -> SampleLengths:
        """Return the lengths and special tokens of each draw, or of each sample, without reading tokens."""
        raise NotImplementedError

    @property
    def has_segments(self) -> bool:
        """True if the sequences have segments."""
        return self.template.has_segments

    def build_pieces(self, draws: EpochOrder) -> SequencePieces:
        """Return the pieces of the sequences of draws; raise a UsageError if the draws lack partners."""
        raise NotImplementedError

    def cut(self, draws: EpochOrder, *, words: bool = False, sentences: bool = False) -> Sequences:
        """Read the sequences of draws, with word and sentence starts on request."""
        pieces = self.build_pieces(draws)
        sequences = read_pieces(pieces, self.shards, words=words, sentences=sentences, segments=self.has_segments)
        sources = self.sources[draws.samples]
        return replace(sequences, samples=draws.samples, epochs=draws.epochs, sources=sources, labels=draws.labels)


def check_enough_tokens(samples: Samples, length: int) -> None:
    """Raise `DataError` if the text does not fill one sequence of `length` tokens: too little to train on."""
    tokens = int(samples.lengths().sum())
    if tokens < length:
        raise DataError(
            f"{samples.shards.directory}: split '{samples.shards.split}' has {tokens} tokens including special "
            f"tokens, fewer than one sequence of {length}; add text, or reduce the sequence length "
            "(--set data.max_length=N)"
        )


@spec
class Documents:
    """Whole documents. A document over the limit is split into consecutive windows."""

    limit: int = 512

    def open(self, shards: Shards, template: TokenTemplate | None = None) -> "RangeSamples":
        """Return the samples of `shards`; by default the template has no special tokens."""
        return RangeSamples(self, shards, template or TokenTemplate())


@spec
class Sentences:
    """Single sentences. A sentence over the limit is split into consecutive windows."""

    limit: int = 128

    def open(self, shards: Shards, template: TokenTemplate | None = None) -> "RangeSamples":
        """Return the samples of `shards`; by default the template has no special tokens."""
        return RangeSamples(self, shards, template or TokenTemplate())


@spec
class Blocks:
    """Windows of `length` tokens over the concatenation of all documents (GPT-2, Radford et al., 2019).

    Each document has its special tokens. All blocks but the last are full. A block may hold parts of several documents,
    which attend to each other; `Documents` keeps documents separate.
    """

    length: int = 1024

    def open(self, shards: Shards, template: TokenTemplate | None = None) -> "BlockSamples":
        """Return the samples of `shards`; by default the template has no special tokens."""
        return BlockSamples(self, shards, template or TokenTemplate())


def compute_text_room(limit: int, room: int) -> int:
    """Return the number of text tokens under `limit` when special tokens need `room`.

    Raises `UsageError` if no text token fits.
    """
    if limit <= room:
        raise UsageError(f"limit must be > {room}, the number of special tokens, got {limit}")
    return limit - room


@dataclass(frozen=True)
class RangeSamples(Samples):
    """Samples of `Documents` or `Sentences`: one range of the shards each."""

    kind: Documents | Sentences

    def __post_init__(self) -> None:
        compute_text_room(self.kind.limit, self.template.special_count)

    @cached_property
    def _table(self) -> tuple[Ints, ...]:
        starts = self.shards.documents[:-1] if isinstance(self.kind, Documents) else self.shards.sentences
        ends = np.append(starts[1:], len(self.shards))
        room = compute_text_room(self.kind.limit, self.template.special_count)
        return split_windows(starts, ends - starts, room)[:2]

    def measure_lengths(self, draws: EpochOrder | None = None) -> SampleLengths:
        special = np.full(len(self) if draws is None else len(draws), self.template.special_count)
        lengths = self._table[1][slice(None) if draws is None else draws.samples] + special
        return SampleLengths(
            lengths, np.zeros_like(lengths), special, np.full(len(lengths), bool(self.template.suffix))
        )

    def build_pieces(self, draws: EpochOrder) -> SequencePieces:
        start, length = (column[draws.samples] for column in self._table)
        return self.template.wrap(start, length)


@dataclass(frozen=True)
class BlockSamples(Samples):
    """Samples of `Blocks`: windows over the concatenated documents with their special tokens. Legend: D documents."""

    kind: Blocks

    def __post_init__(self) -> None:
        compute_text_room(self.kind.length, self.template.special_count)

    @cached_property
    def _document_starts(self) -> Ints:
        """[D + 1] Start of each document in the concatenation; an empty document has no special tokens."""
        lengths = np.diff(self.shards.documents)
        return compute_offsets(lengths + self.template.special_count * (lengths > 0))

    @cached_property
    def sources(self) -> Ints:
        """[n] Source of the first document of each block."""
        document = np.searchsorted(self._document_starts, np.arange(len(self)) * self.kind.length, side="right") - 1
        return self.shards.sources[document].astype(np.int64)

    def __len__(self) -> int:
        return -(-self.token_count // self.kind.length)

    def measure_lengths(self, draws: EpochOrder | None = None) -> SampleLengths:
        start = (np.arange(len(self)) if draws is None else draws.samples) * self.kind.length
        lengths = np.minimum(self.kind.length, self._document_starts[-1] - start)
        before_start, before_last, total = (
            self._count_special(positions) for positions in (start, start + lengths - 1, start + lengths)
        )
        return SampleLengths(lengths, np.zeros_like(lengths), total - before_start, total > before_last)

    def _count_special(self, positions: Ints) -> Ints:
        """Return the number of special tokens before each position of the concatenation."""
        texts, opening = self.shards.documents, len(self.template.prefix)
        document = np.minimum(np.searchsorted(self._document_starts, positions, side="right") - 1, len(texts) - 2)
        inside = positions - self._document_starts[document] - opening
        return np.asarray(positions - texts[document] - np.clip(inside, 0, texts[document + 1] - texts[document]))

    @property
    def token_count(self) -> int:
        """Number of tokens of the concatenation."""
        return int(self._document_starts[-1])

    def build_pieces(self, draws: EpochOrder) -> SequencePieces:
        start = draws.samples * self.kind.length
        return self._build_range_pieces(start, np.minimum(start + self.kind.length, self.token_count))

    def cut_ranges(self, starts: Ints, stops: Ints) -> Sequences:
        """Read ranges of the concatenation, which may have any lengths and overlap."""
        pieces = self._build_range_pieces(starts, stops)
        return read_pieces(pieces, self.shards, segments=self.has_segments)

    def _build_range_pieces(self, start: Ints, stop: Ints) -> SequencePieces:
        first = np.searchsorted(self._document_starts, start, side="right") - 1
        counts = np.searchsorted(self._document_starts, stop) - first  # documents in each block, in whole or in part
        document = spread(first, counts)
        length = self.shards.documents[document + 1] - self.shards.documents[document]
        document_pieces, width = self.template.wrap(self.shards.documents[document], length), len(self.template.single)
        # `place` is the position of each piece in the concatenation; parts of pieces outside the block are removed.
        size = document_pieces.length * np.repeat(length > 0, width)
        ends = self._document_starts[document][:, None] + np.cumsum(size.reshape(-1, width), axis=1)
        place = ends.ravel() - size
        block = np.repeat(np.arange(len(start)), counts * width)
        low, high = np.maximum(place, start[block]), np.minimum(place + size, stop[block])
        return SequencePieces(
            counts=counts * width,
            start=document_pieces.start + np.where(document_pieces.special, 0, low - place),
            length=np.maximum(high - low, 0),
            special=document_pieces.special,
            segment=document_pieces.segment,
        )


def read_pieces(
    pieces: SequencePieces, shards: Shards, *, words: bool = False, sentences: bool = False, segments: bool = False
) -> Sequences:
    """Read the tokens of pieces from the shards, with word starts, sentence starts and segments on request."""
    texts = ~pieces.special & (pieces.length > 0)
    start, length = pieces.start[texts], pieces.length[texts]
    sequences = Sequences.from_pieces(pieces, shards.take(start, length), segments=segments)
    assert sequences.special is not None
    first = compute_starts(pieces.length)[texts]
    starts_word = starts_sentence = None
    if words:
        starts_word = sequences.special.copy()
        starts_word[~sequences.special] = shards.take_words(start, length)
        starts_word[first] = True
    if sentences:
        starts_sentence = sequences.special.copy()
        order = np.argsort(start)  # searching in ascending order is several times as fast
        low, high = np.empty_like(start), np.empty_like(start)
        low[order] = np.searchsorted(shards.sentences, start[order])
        high[order] = np.searchsorted(shards.sentences, (start + length)[order])
        inside = shards.sentences[spread(low, high - low)]  # every sentence start inside a text
        starts_sentence[inside + np.repeat(first - start, high - low)] = True
        starts_sentence[first] = True
    return replace(sequences, words=starts_word, sentences=starts_sentence)
