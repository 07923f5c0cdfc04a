"""How a model of each shape is asked for the probability of tokens: what it reads, and where it answers.

    the cat sat          judged: "cat sat"

    Causal      <s> the cat             -> cat sat                 all that is before a token
    Masked      [CLS] the [MASK] sat [SEP] -> cat,  [CLS] the cat [MASK] [SEP] -> sat      a copy for every token
    Ordered     the same copies, where a token is hidden by the order of a two-stream model and not by a mask
    Sentinel    the <X> </s> | <pad> <X> cat -> cat sat            what fills a blank (T5)
    Infilled    <s> the <mask> </s> | </s> <s> the cat -> cat sat  the text itself, out of one with a blank (BART)
    Given       the </s> | <pad> cat    -> cat sat                 what is written after reading the rest

`MaskedScoring` hides the later tokens of a word with an earlier one: else a piece like "##venir" gives "so" away, and rare
words come out likely (Kauf and Ivanova, 2023). Legend as in `passage`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.ragged import Bools, Ints, compute_offsets, compute_starts, spread
from pretune.data.sequences import Sequences
from pretune.inference.scoring.passages import Passages

CHUNK_TOKENS = 1 << 22
"""So many tokens are laid out at a time, which bounds the memory that copies take."""


class ScoringQuery(NamedTuple):
    """Sequences with targets, and which judged token [M] each target is, counted through all passages."""

    sequences: Sequences
    token_index: Ints


class ScoringMethod(Protocol):
    """A way of asking."""

    def room(self, longest: int) -> int:
        """How many tokens a passage may have where a sequence may have so many."""

    def ask(self, passages: Passages) -> Iterator[ScoringQuery]:
        """Everything that is to be read, in parts."""


@dataclass(frozen=True, slots=True)
class CausalScoring:
    """A decoder reads from the left, behind the tokens of `lead`; without any the first token cannot be judged."""

    lead: tuple[int, ...] = ()

    def room(self, longest: int) -> int:
        return longest - len(self.lead) + 1  # the last token is not read

    def ask(self, passages: Passages) -> Iterator[ScoringQuery]:
        for part, first in split_into_chunks(passages, passages.lengths + len(self.lead)):
            read = _build_inputs(part, self.lead)
            if len(read.tokens):
                yield _build_query(read, part, first, len(self.lead) - 1)


@dataclass(frozen=True, slots=True)
class MaskedScoring:
    """An encoder reads a copy of the text for every token judged, with that token masked.

    With `mask_word_rest` the later tokens of its unit are masked too; without it this is the score of Salazar et al. (2020).
    """

    frame: "SpecialTokenFrame"
    mask: int
    mask_word_rest: bool = True

    def room(self, longest: int) -> int:
        return longest - self.frame.extra

    def ask(self, passages: Passages) -> Iterator[ScoringQuery]:
        for part, first in split_into_chunks(passages, (passages.lengths + self.frame.extra) * passages.span_lengths):
            copies, place, hidden = _copy_per_token(part, self.frame, self.mask_word_rest)
            targets = np.full(len(copies.tokens), IGNORE_INDEX)
            targets[place] = copies.tokens[place]
            copies.tokens[hidden] = self.mask
            asked = Sequences(tokens=copies.tokens, offsets=copies.offsets, segments=copies.segments, targets=targets)
            yield ScoringQuery(asked, first + np.arange(len(place)))


@dataclass(frozen=True, slots=True)
class TwoStreamScoring:
    """A two-stream model: the token comes after all of its context, and what is hidden with it after that."""

    frame: "SpecialTokenFrame"
    mask_word_rest: bool = True

    def room(self, longest: int) -> int:
        return longest - self.frame.extra

    def ask(self, passages: Passages) -> Iterator[ScoringQuery]:
        for part, first in split_into_chunks(passages, (passages.lengths + self.frame.extra) * passages.span_lengths):
            copies, place, hidden = _copy_per_token(part, self.frame, self.mask_word_rest)
            targets, order = np.full(len(copies.tokens), IGNORE_INDEX), np.zeros(len(copies.tokens), dtype=np.int64)
            targets[place] = copies.tokens[place]
            order[hidden] = 2
            order[place] = 1
            asked = Sequences(
                tokens=copies.tokens, offsets=copies.offsets, segments=copies.segments, targets=targets, order=order
            )
            yield ScoringQuery(asked, first + np.arange(len(place)))


@dataclass(frozen=True, slots=True)
class SentinelScoring:
    """An encoder-decoder that writes what a sentinel stands for, behind that sentinel."""

    frame: "SpecialTokenFrame"
    start: int
    sentinel: int

    def room(self, longest: int) -> int:
        return longest - 1 - self.frame.extra

    def ask(self, passages: Passages) -> Iterator[ScoringQuery]:
        for part, first in split_into_chunks(passages, passages.lengths + self.frame.extra + 3):
            read = _build_inputs(_extract_spans(part), (self.start, self.sentinel))
            yield _build_query(read, _extract_spans(part), first, 1, _blank_spans(part, self.frame, (self.sentinel,)))


@dataclass(frozen=True, slots=True)
class InfillScoring:
    """An encoder-decoder that writes the whole text out of one with a mask in it."""

    frame: "SpecialTokenFrame"
    start: int
    mask: int

    def room(self, longest: int) -> int:
        return longest - 1 - self.frame.extra

    def ask(self, passages: Passages) -> Iterator[ScoringQuery]:
        lead = (self.start, *(token for token, _ in self.frame.prefix))
        for part, first in split_into_chunks(passages, 2 * (passages.lengths + self.frame.extra) + 1):
            yield _build_query(
                _build_inputs(part, lead), part, first, len(lead) - 1, _blank_spans(part, self.frame, (self.mask,))
            )


@dataclass(frozen=True, slots=True)
class ConditionalScoring:
    """An encoder-decoder that reads what is before (and after) the stretch, and writes the stretch."""

    frame: "SpecialTokenFrame"
    start: int

    def room(self, longest: int) -> int:
        return longest - 1 - self.frame.extra

    def ask(self, passages: Passages) -> Iterator[ScoringQuery]:
        for part, first in split_into_chunks(passages, passages.lengths + self.frame.extra + 1):
            alone = _extract_spans(part)
            yield _build_query(_build_inputs(alone, (self.start,)), alone, first, 0, _blank_spans(part, self.frame, ()))


@dataclass(frozen=True, slots=True)
class SpecialTokenFrame:
    """The special tokens before and after a text, each with its segment, and the segment of the text."""

    prefix: tuple[tuple[int, int], ...] = ()
    suffix: tuple[tuple[int, int], ...] = ()
    segment: int = 0

    @property
    def extra(self) -> int:
        """How many they are."""
        return len(self.prefix) + len(self.suffix)

    def wrap(self, tokens: Ints, lengths: Ints) -> Sequences:
        """Texts in the frame; segments only where there are others than 0."""
        size, count = lengths + self.extra, len(lengths)
        offsets = compute_offsets(size)
        out, segments = np.empty(int(offsets[-1]), dtype=np.int64), np.full(int(offsets[-1]), self.segment)
        out[spread(offsets[:-1] + len(self.prefix), lengths)] = tokens
        for at, (token, segment) in enumerate(self.prefix):
            out[offsets[:-1] + at], segments[offsets[:-1] + at] = token, segment
        for at, (token, segment) in enumerate(reversed(self.suffix), start=1):
            out[offsets[1:] - at], segments[offsets[1:] - at] = token, segment
        told = count > 0 and (self.segment or any(segment for _, segment in (*self.prefix, *self.suffix)))
        return Sequences(tokens=out, offsets=offsets, segments=segments if told else None)


def split_into_chunks(passages: Passages, cost: Ints) -> Iterator[tuple[Passages, int]]:
    """Passages in parts of about `CHUNK_TOKENS`, and the number of each part's first judged token."""
    number = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(passages.span_lengths)))
    part = (np.cumsum(cost) - cost) // CHUNK_TOKENS  # [S]
    edges = np.flatnonzero(np.diff(part)) + 1
    for low, high in zip((0, *edges.tolist()), (*edges.tolist(), len(passages)), strict=True):
        if low < high:
            yield passages.take(np.arange(low, high)), int(number[low])


def _build_inputs(part: Passages, lead: tuple[int, ...]) -> Sequences:
    """The lead and each text up to its last judged token but one; nothing is read of what is after."""
    lengths = np.maximum(part.stop - 1, 0)
    offsets = compute_offsets(lengths + len(lead))
    out = np.empty(int(offsets[-1]), dtype=np.int64)
    out[spread(offsets[:-1] + len(lead), lengths)] = part.tokens[spread(part.offsets[:-1], lengths)]
    for at, token in enumerate(lead):
        out[offsets[:-1] + at] = token
    return Sequences(tokens=out, offsets=offsets)


def _build_query(
    inputs: Sequences, part: Passages, first: int, shift: int, source: Sequences | None = None
) -> ScoringQuery:
    """Targets: the token at place p of a text is said at place `ahead` + p of what is read; where that is -1, nowhere.

    Where nothing at all is read, the sequence is left out.
    """
    place = spread(part.start, part.span_lengths) + shift  # [J] inside each sequence
    said = place >= 0
    at = place + np.repeat(inputs.offsets[:-1], part.span_lengths)
    targets = np.full(len(inputs.tokens), IGNORE_INDEX)
    targets[at[said]] = part.tokens[spread(part.offsets[:-1] + part.start, part.span_lengths)][said]
    asked = Sequences(tokens=inputs.tokens, offsets=inputs.offsets, targets=targets, source=source)
    some = np.flatnonzero(inputs.lengths > 0)
    if len(some) < len(inputs):
        asked = asked.take(some)
    return ScoringQuery(asked, first + np.flatnonzero(said))


def _extract_spans(part: Passages) -> Passages:
    """The judged stretches as passages of their own."""
    index = spread(part.offsets[:-1] + part.start, part.span_lengths)
    return Passages(
        tokens=part.tokens[index],
        offsets=compute_offsets(part.span_lengths),
        start=np.zeros_like(part.start),
        stop=part.span_lengths,
        unit_starts=part.unit_starts[index],
    )


def _blank_spans(part: Passages, frame: SpecialTokenFrame, blank: tuple[int, ...]) -> Sequences:
    """What the encoder reads: the texts in the frame, with a blank (or nothing) in place of the judged stretch."""
    before, after = part.start, part.lengths - part.stop
    lengths = before + len(blank) + after
    offsets = compute_offsets(lengths)
    out = np.empty(int(offsets[-1]), dtype=np.int64)
    out[spread(offsets[:-1], before)] = part.tokens[spread(part.offsets[:-1], before)]
    for at, token in enumerate(blank):
        out[offsets[:-1] + before + at] = token
    out[spread(offsets[1:] - after, after)] = part.tokens[spread(part.offsets[:-1] + part.stop, after)]
    if frame.extra == 0 and (lengths == 0).any():
        raise UsageError("an encoder-decoder needs something to read: give it a source, or a text with a blank")
    return frame.wrap(out, lengths)


def _copy_per_token(part: Passages, frame: SpecialTokenFrame, mask_word_rest: bool) -> tuple[Sequences, Ints, Bools]:
    """A framed copy of its text for every judged token; where that token is [J], and what is hidden of each copy."""
    laid = frame.wrap(part.tokens, part.lengths)
    owner = np.repeat(np.arange(len(part)), part.span_lengths)  # [J]
    copies = laid.take(owner)
    inside = spread(part.start, part.span_lengths)  # [J] in its text
    place = copies.offsets[:-1] + len(frame.prefix) + inside
    flat = part.offsets[:-1][owner] + inside
    edges = np.append(np.flatnonzero(part.unit_starts), len(part.tokens))
    end = edges[np.searchsorted(edges, flat, side="right")] if mask_word_rest else flat + 1
    count = end - flat
    hidden = np.zeros(len(copies.tokens), dtype=np.bool_)
    hidden[np.repeat(place - compute_starts(count), count) + np.arange(int(count.sum()))] = True
    return copies, place, hidden
