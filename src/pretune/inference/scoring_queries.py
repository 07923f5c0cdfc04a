"""Scoring methods of each model shape: inputs, and positions of the targets.

    the cat sat          scored: "cat sat"

    Causal       <s> the cat             -> cat sat                 the tokens before
    MaskedNext   <s> the [MASK] sat -> cat at "the", …    copies as below, a decoder of `masked_next`
    Masked       [CLS] the [MASK] sat [SEP] -> cat,  [CLS] the cat [MASK] [SEP] -> sat      a copy for every token
                 the same copies, with a token hidden by the order of a two-stream model instead of a mask
    EncoderDecoder, by lead, blank and whole_text:
                 the <X> </s> | <pad> <X> cat -> cat sat            the filler of a sentinel (T5)
                 <s> the <mask> </s> | </s> <s> the cat -> cat sat  the whole text, from one with a mask (BART)
                 the </s> | <pad> cat    -> cat sat                 the output, given the rest as input

`MaskedScoring` masks the later tokens of a word together with an earlier one: otherwise a token like "##venir" gives
"so" away, and rare words get high probabilities (Kauf and Ivanova, 2023). Legend: S texts, T
tokens in total, J scored tokens in total.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from pretune.core.errors import DataError, UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Bools, Ints, Sequences, compute_offsets, compute_starts, spread
from pretune.text.template import TokenTemplate
from pretune.text.tokenizer import Tokenizer

CharacterSpan = tuple[int, int]
"""Start and end of a part of a text, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passages:
    """S texts with spans. The tokens of a *unit* (a word, or an answer) are masked together."""

    tokens: Ints  # [T]
    offsets: Ints  # [S + 1]
    start: Ints  # [S] first scored token of each text
    stop: Ints  # [S] the token after the last scored one
    unit_starts: Bools  # [T] starts a unit
    truncated_texts: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """Tokens of each text [S]."""
        return np.diff(self.offsets)

    @property
    def span_lengths(self) -> Ints:
        """Scored tokens of each text [S]."""
        return self.stop - self.start

    def take(self, indices: Ints) -> "Passages":
        """Select passages by index."""
        return self._cut(self.offsets[:-1][indices], self.lengths[indices], self.start[indices], self.stop[indices])

    def _cut(self, first: Ints, lengths: Ints, start: Ints, stop: Ints) -> "Passages":
        """Return passages of so many tokens, from the tokens `first` [S] of all passages, with these spans."""
        index, offsets = spread(first, lengths), compute_offsets(lengths)
        tokens, unit_starts = self.tokens[index], self.unit_starts[index]
        return replace(self, tokens=tokens, offsets=offsets, start=start, stop=stop, unit_starts=unit_starts)

    def reverse(self) -> "Passages":
        """Reverse the tokens of every passage; a unit is then a token."""
        index = np.repeat(self.offsets[1:] + self.offsets[:-1] - 1, self.lengths) - np.arange(len(self.tokens))
        return replace(
            self,
            tokens=self.tokens[index],
            start=self.lengths - self.stop,
            stop=self.lengths - self.start,
            unit_starts=np.ones_like(self.unit_starts),
        )

    def fit(self, max_length: int | None) -> "Passages":
        """Truncate passages to `max_length`: first the context before the span, then the end of the span."""
        is_long = None if max_length is None else self.lengths > max_length
        if max_length is None or is_long is None or not is_long.any():
            return self
        lengths = np.minimum(self.lengths, max_length)
        short_passages = self.crop(np.minimum(self.lengths - lengths, self.start), lengths)
        short_passages.unit_starts[short_passages.offsets[:-1]] = True
        return replace(short_passages, truncated_texts=self.truncated_texts + int(is_long.sum()))

    def crop(self, first: Ints, lengths: Ints) -> "Passages":
        """Keep so many tokens of each passage, from its token `first`, which is in its span or before."""
        stop = np.minimum(self.stop - first, lengths)
        return self._cut(self.offsets[:-1] + first, lengths, self.start - first, stop)


def encode_passages(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    spans: Sequence[CharacterSpan] | None = None,
    *,
    single_unit: bool = False,
) -> Passages:
    """Tokenize texts; `spans` are the spans to score, in characters (default: the whole texts).

    A span includes the whitespace before it. With `single_unit` it is one unit; otherwise each word is. Special tokens
    spelled out in a text are treated as text.
    """
    encoding = tokenizer.encode_batch(texts, literal=True)
    lengths = np.diff(encoding.offsets)
    start, stop = np.zeros(len(texts), dtype=np.int64), lengths.copy()
    units = encoding.word_start.copy()
    units[encoding.offsets[:-1][lengths > 0]] = True
    for number, span in enumerate(spans or ()):
        start[number], stop[number] = encoding.find_tokens(number, span)
        if single_unit:
            first = int(encoding.offsets[number])
            units[first + start[number] : first + stop[number]] = False
            units[first + start[number]] = True
            if stop[number] < lengths[number]:
                units[first + stop[number]] = True
    if (stop <= start).any():
        number = int((stop <= start).argmax())
        raise DataError(f"text {number + 1}, {texts[number][:60]!r}: its span has no tokens; remove it")
    return Passages(
        tokens=encoding.ids.astype(np.int64), offsets=encoding.offsets, start=start, stop=stop, unit_starts=units
    )


CHUNK_TOKENS = 1 << 22
"""Tokens laid out at once; bounds the memory of copies."""


class ScoringQuery(NamedTuple):
    """Sequences with targets, and the scored token [M] of each target, counted over all passages."""

    sequences: Sequences
    token_index: Ints


class ScoringMethod(Protocol):
    """Scoring method of a model shape."""

    def get_max_passage(self, max_length: int) -> int:
        """Return the maximum tokens of a passage, given the maximum sequence length."""

    def build_queries(self, passages: Passages) -> Iterator[ScoringQuery]:
        """Yield the sequences to run, in parts."""


@dataclass(frozen=True, slots=True)
class CausalScoring:
    """Left-to-right scoring by a decoder, after the tokens of `lead`; without a lead the first token has no score."""

    lead: tuple[int, ...] = ()

    def get_max_passage(self, max_length: int) -> int:
        return max_length - len(self.lead) + 1  # the last token is not an input

    def build_queries(self, passages: Passages) -> Iterator[ScoringQuery]:
        for part, first in split_into_chunks(passages, passages.lengths + len(self.lead)):
            inputs = _build_inputs(part, self.lead)
            if len(inputs.tokens):
                yield _build_query(inputs, part, first, len(self.lead) - 1)


@dataclass(frozen=True, slots=True)
class MaskedScoring:
    """Scoring by a bidirectional model, with a copy of the text for every scored token, which is masked.

    Without a `mask` the model is a two-stream model: the token is ordered after its context. With `mask_word_rest` the
    later tokens of its unit are masked too (or ordered last); without it this is the score of Salazar et al. (2020).
    """

    template: TokenTemplate
    mask: int | None
    mask_word_rest: bool = True

    def get_max_passage(self, max_length: int) -> int:
        return max_length - self.template.special_count

    def build_queries(self, passages: Passages) -> Iterator[ScoringQuery]:
        lengths = passages.lengths + self.template.special_count
        for part, first in split_into_chunks(passages, lengths * passages.span_lengths):
            copies, positions, is_masked = _copy_per_token(part, self.template, self.mask_word_rest)
            targets, order = np.full(len(copies.tokens), IGNORE_INDEX), None
            targets[positions] = copies.tokens[positions]
            if self.mask is None:
                order = np.where(is_masked, 2, 0)
                order[positions] = 1
            else:
                copies.tokens[is_masked] = self.mask
            yield ScoringQuery(replace(copies, targets=targets, order=order), first + np.arange(len(positions)))


class MaskedNextScoring(MaskedScoring):
    """Scoring by a decoder of `masked_next`: copies as in `MaskedScoring`; the position before a token predicts it."""

    def build_queries(self, passages: Passages) -> Iterator[ScoringQuery]:
        for sequences, token_index in super().build_queries(passages):
            assert sequences.targets is not None
            targets = np.append(sequences.targets[1:], IGNORE_INDEX)
            targets[sequences.offsets[1:] - 1] = IGNORE_INDEX  # the first token of a text without a prefix has no score
            has_context = sequences.targets[sequences.offsets[:-1]] == IGNORE_INDEX
            yield ScoringQuery(replace(sequences, targets=targets, prefix=sequences.lengths), token_index[has_context])


@dataclass(frozen=True, slots=True)
class EncoderDecoderScoring:
    """Scoring by an encoder-decoder: the encoder reads the text with `blank` in place of the span.

    The decoder generates the span after the tokens of `lead`, or with `whole_text` the whole text.
    """

    template: TokenTemplate
    lead: tuple[int, ...]
    blank: tuple[int, ...] = ()
    whole_text: bool = False

    def get_max_passage(self, max_length: int) -> int:
        return max_length - 1 - self.template.special_count

    def build_queries(self, passages: Passages) -> Iterator[ScoringQuery]:
        cost = passages.lengths * (1 + self.whole_text) + self.template.special_count + len(self.lead) + len(self.blank)
        for part, first in split_into_chunks(passages, cost):
            target = part if self.whole_text else part.crop(part.start, part.span_lengths)
            source = _blank_spans(part, self.template, self.blank)
            yield _build_query(_build_inputs(target, self.lead), target, first, len(self.lead) - 1, source)


def split_into_chunks(passages: Passages, cost: Ints) -> Iterator[tuple[Passages, int]]:
    """Yield passages in parts of about `CHUNK_TOKENS`, with the number of each part's first scored token."""
    number = compute_offsets(passages.span_lengths)
    part = (np.cumsum(cost) - cost) // CHUNK_TOKENS  # [S]
    edges = np.flatnonzero(np.diff(part)) + 1
    for low, high in zip((0, *edges.tolist()), (*edges.tolist(), len(passages)), strict=True):
        if low < high:
            yield passages.take(np.arange(low, high)), int(number[low])


def _add_special_tokens(template: TokenTemplate, tokens: Ints, lengths: Ints) -> Sequences:
    """Return texts with the special tokens of the template, and with segments if some are not 0."""
    pieces = template.wrap(compute_starts(lengths), lengths)
    return replace(Sequences.from_pieces(pieces, tokens, segments=template.has_segments), special=None)


def _build_inputs(part: Passages, lead: tuple[int, ...]) -> Sequences:
    """Prepend the lead to each text up to its second-last scored token; the rest is not an input."""
    lengths = np.maximum(part.stop - 1, 0)
    offsets = compute_offsets(lengths + len(lead))
    out = np.empty(int(offsets[-1]), dtype=np.int64)
    out[spread(offsets[:-1] + len(lead), lengths)] = part.tokens[spread(part.offsets[:-1], lengths)]
    for index, token in enumerate(lead):
        out[offsets[:-1] + index] = token
    return Sequences(tokens=out, offsets=offsets)


def _build_query(
    inputs: Sequences, part: Passages, first: int, shift: int, source: Sequences | None = None
) -> ScoringQuery:
    """Build targets: the token at position p of a text is predicted at position p + `shift` of the inputs, if >= 0.

    Sequences without inputs are dropped.
    """
    positions = spread(part.start, part.span_lengths) + shift  # [J] within each sequence
    has_context = positions >= 0
    target_positions = positions + np.repeat(inputs.offsets[:-1], part.span_lengths)
    targets = np.full(len(inputs.tokens), IGNORE_INDEX)
    scored_tokens = part.tokens[spread(part.offsets[:-1] + part.start, part.span_lengths)]
    targets[target_positions[has_context]] = scored_tokens[has_context]
    sequences = Sequences(tokens=inputs.tokens, offsets=inputs.offsets, targets=targets, source=source)
    non_empty = np.flatnonzero(inputs.lengths > 0)
    if len(non_empty) < len(inputs):
        sequences = sequences.take(non_empty)
    return ScoringQuery(sequences, first + np.flatnonzero(has_context))


def _blank_spans(part: Passages, template: TokenTemplate, blank: tuple[int, ...]) -> Sequences:
    """Build the encoder's input: the framed texts, with a mask (or nothing) in place of the scored span."""
    prefix_lengths, suffix_lengths = part.start, part.lengths - part.stop
    lengths = prefix_lengths + len(blank) + suffix_lengths
    offsets = compute_offsets(lengths)
    out = np.empty(int(offsets[-1]), dtype=np.int64)
    out[spread(offsets[:-1], prefix_lengths)] = part.tokens[spread(part.offsets[:-1], prefix_lengths)]
    for index, token in enumerate(blank):
        out[offsets[:-1] + prefix_lengths + index] = token
    suffixes = spread(part.offsets[:-1] + part.stop, suffix_lengths)
    out[spread(offsets[1:] - suffix_lengths, suffix_lengths)] = part.tokens[suffixes]
    if template.special_count == 0 and (lengths == 0).any():
        raise UsageError("an encoder-decoder needs an input: pass a source, or a text with a mask")
    return _add_special_tokens(template, out, lengths)


def _copy_per_token(part: Passages, template: TokenTemplate, mask_word_rest: bool) -> tuple[Sequences, Ints, Bools]:
    """Copy the framed text for every scored token; returns the copies, its positions [J], and the mask of each copy."""
    texts_with_specials = _add_special_tokens(template, part.tokens, part.lengths)
    owner = np.repeat(np.arange(len(part)), part.span_lengths)  # [J]
    copies = texts_with_specials.take(owner)
    text_positions = spread(part.start, part.span_lengths)  # [J] in its text
    positions = copies.offsets[:-1] + len(template.prefix) + text_positions
    flat_positions = part.offsets[:-1][owner] + text_positions
    edges = np.append(np.flatnonzero(part.unit_starts), len(part.tokens))
    end = edges[np.searchsorted(edges, flat_positions, side="right")] if mask_word_rest else flat_positions + 1
    count = end - flat_positions
    is_masked = np.zeros(len(copies.tokens), dtype=np.bool_)
    is_masked[np.repeat(positions - compute_starts(count), count) + np.arange(int(count.sum()))] = True
    return copies, positions, is_masked
