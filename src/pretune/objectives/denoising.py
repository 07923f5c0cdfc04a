"""Denoising: corrupt a text with noise and reconstruct all of it.

Paper: Lewis et al. (2020), BART; by default its noise, permuted sentences and 30 % of the tokens in infilled spans
(span lengths count tokens; the released code counts words). Input: documents or blocks. The target is the whole
sequence with its special tokens. Siblings: `span_corruption` predicts the missing spans only; `masked_seq2seq` one
span.

    text     <s> A B C . D E . </s>
    source   <s> D _ . A _ . </s>
    tokens   </s> <s> A B C . D E .
    targets  <s> A B C . D E . </s>

The noise functions of BART (section 2.2) are specs, applied one after another.

    text                   A B C . D E .
    token_masking          A _ C . D E .
    token_deletion         A C . D E .
    text_infilling         A _ D _ E .          (one mask for B C ., one for an empty span)
    sentence_permutation   D E . A B C .
    document_rotation      C . D E . A B

Special tokens stay in place. A noise states whether it `uses_mask` (needs a mask token), whether it needs `sentences`
(sentence boundaries), and the largest share of the tokens that it removes (`removed_share`). `apply` never lengthens a
sequence and leaves at least one token of it; `count_remaining` computes the number of ordinary tokens that remain, with
the same random draws. Legend: T tokens, E ordinary tokens, S sequences.
"""

from dataclasses import dataclass, replace
from math import exp
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import Ge, Gt, Le, Lt, NonEmpty, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import Counters, SampleLengths
from pretune.data.sequences import Ints, Sequences, compute_offsets, compute_starts, spread
from pretune.data.stream import Corruption
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.segment_sampling import (
    exclusive_cumsum,
    find_ordinary_tokens,
    index_to_mask,
    round_randomly,
    sample_k,
    shuffle_groups,
    sum_groups,
)
from pretune.objectives.seq2seq import (
    DecoderLayout,
    EncoderDecoderLayout,
    NoiseSpans,
    choose_layout,
    ensure_mask_token,
    make_labels,
)


class _Noise:
    """Defaults of a noise: it needs neither a mask nor sentences, and removes nothing."""

    __slots__ = ()

    uses_mask: ClassVar[bool] = False
    sentences: ClassVar[bool] = False
    shortens: ClassVar[bool] = False

    @property
    def removed_share(self) -> float:
        return getattr(self, "rate", 0.0) if self.shortens else 0.0

    def count_remaining(self, sizes: Ints, rng: Counters) -> Ints:
        return sizes


@spec
class TokenMasking(_Noise):
    """Random tokens are replaced by the mask; the paper says "following BERT", hence the rate."""

    rate: Annotated[float, Gt(0), Lt(1)] = 0.15

    uses_mask: ClassVar[bool] = True

    def apply(self, sequences: Sequences, mask: int, rng: Counters) -> Sequences:
        index, sizes = find_ordinary_tokens(sequences)
        tokens = sequences.tokens.copy()
        tokens[index[sample_k(rng.bits(1, sizes), sizes, round_randomly(self.rate * sizes, rng.uniform(0)))]] = mask
        return replace(sequences, tokens=tokens)


@spec
class TokenDeletion(_Noise):
    """Random tokens are deleted without a trace, but never all of them. The paper gives no rate."""

    rate: Annotated[float, Gt(0), Lt(1)] = 0.15

    shortens: ClassVar[bool] = True

    def count_remaining(self, sizes: Ints, rng: Counters) -> Ints:
        left: Ints = np.maximum(sizes - round_randomly(self.rate * sizes, rng.uniform(0)), np.minimum(sizes, 1))
        return left

    def apply(self, sequences: Sequences, mask: int, rng: Counters) -> Sequences:
        index, sizes = find_ordinary_tokens(sequences)
        counts = sizes - self.count_remaining(sizes, rng)
        is_deleted = index_to_mask(index[sample_k(rng.bits(1, sizes), sizes, counts)], len(sequences.tokens))
        return gather_tokens(sequences, np.flatnonzero(~is_deleted), sequences.lengths - counts)


@spec
class TextInfilling(_Noise):
    """Spans with Poisson lengths are replaced by one mask each; an empty span inserts a mask.

    Lengths are sampled until they cover the rate, the last one is shortened to fit; then spans and remaining tokens are
    shuffled. So spans never overlap and the rate is exact. Empty spans that would lengthen a short text are dropped.
    """

    rate: Annotated[float, Gt(0), Lt(1)] = 0.3
    mean: Annotated[float, Ge(1), Le(100)] = 3.0  # of the Poisson distribution

    uses_mask: ClassVar[bool] = True
    shortens: ClassVar[bool] = True

    def count_remaining(self, sizes: Ints, rng: Counters) -> Ints:
        budget = self.draw_budget(sizes, rng)
        return sizes - budget + self.draw_spans(budget, rng)[1]

    def apply(self, sequences: Sequences, mask: int, rng: Counters) -> Sequences:
        sizes = find_ordinary_tokens(sequences)[1]
        budget = self.draw_budget(sizes, rng)
        length, counts = self.draw_spans(budget, rng)
        slots = sizes - budget + counts  # one per remaining token and per span
        places = sample_k(rng.bits(2, slots), slots, counts)
        order = np.argsort(places)
        places, length = places[order], length[order]  # spans in text order
        free = places - np.repeat(compute_starts(slots), counts) - spread(np.zeros_like(counts), counts)
        # Among the ordinary tokens.
        start = np.repeat(compute_starts(sizes), counts) + free + exclusive_cumsum(length, counts)
        return infill_spans(sequences, NoiseSpans(start, length, counts), mask)

    def draw_budget(self, sizes: Ints, rng: Counters) -> Ints:
        """Sample the number of tokens in spans [S]."""
        return round_randomly(self.rate * sizes, rng.uniform(0))

    def draw_spans(self, budget: Ints, rng: Counters) -> tuple[Ints, Ints]:
        """Sample span lengths that sum to `budget[s]`; returns the lengths and the number of spans per sequence [S]."""
        table = poisson_cdf(self.mean)
        tries = np.where(budget > 0, np.ceil(1.3 * budget / self.mean) + 8, 0).astype(np.int64)
        while True:  # NOTE: draws are numbered, so a longer draw starts with the shorter one
            length = np.searchsorted(table, rng.uniform(1, tries), side="right")
            short = sum_groups(length, compute_offsets(tries)) < budget
            if not short.any():
                break
            tries = np.where(short, 2 * tries, tries)
        rest = np.repeat(budget, tries) - exclusive_cumsum(length, tries)
        length = np.minimum(length, rest)
        full = length > 0
        max_empty = budget - sum_groups(full, compute_offsets(tries))
        empty = ~full & (rest > 0)
        use = full | (empty & (exclusive_cumsum(empty.astype(np.int64), tries) < np.repeat(max_empty, tries)))
        return length[use], sum_groups(use, compute_offsets(tries))


@spec
class SentencePermutation(_Noise):
    """Sentences in random order."""

    sentences: ClassVar[bool] = True

    def apply(self, sequences: Sequences, mask: int, rng: Counters) -> Sequences:
        if sequences.sentences is None:
            raise UsageError("the sequences have no sentence boundaries; open the stream with sentences=True")
        index, sizes = find_ordinary_tokens(sequences)
        begin = sequences.sentences[index]
        begin[compute_starts(sizes)[sizes > 0]] = True
        begin[1:] |= np.diff(index) > 1  # after a special token
        first = np.flatnonzero(begin)
        length = np.diff(np.append(first, len(index)))
        order = shuffle_groups(rng.bits(0, counts := sum_groups(begin, compute_offsets(sizes))), counts)
        return reorder_tokens(sequences, index, spread(first[order], length[order]))


@spec
class DocumentRotation(_Noise):
    """Text rotated to start with a random token."""

    def apply(self, sequences: Sequences, mask: int, rng: Counters) -> Sequences:
        index, sizes = find_ordinary_tokens(sequences)
        turn = np.minimum((rng.uniform(0) * sizes).astype(np.int64), np.maximum(sizes - 1, 0))
        place, size = spread(turn, sizes), np.repeat(sizes, sizes)
        order = np.repeat(compute_starts(sizes), sizes) + place - size * (place >= size)
        return reorder_tokens(sequences, index, order)


Noise = TokenMasking | TokenDeletion | TextInfilling | SentencePermutation | DocumentRotation


def poisson_cdf(mean: float) -> NDArray[np.float64]:
    """Return the Poisson distribution function at 0, 1, 2, … until it is 1 in double precision."""
    probabilities = np.empty(int(mean + 12 * np.sqrt(mean) + 12))
    probabilities[0] = exp(-mean)
    for i in range(1, len(probabilities)):
        probabilities[i] = probabilities[i - 1] * mean / i
    table = np.cumsum(probabilities)
    table[-1] = 1.0
    return table


def gather_tokens(sequences: Sequences, index: Ints, lengths: Ints) -> Sequences:
    """Gather the tokens at `index` into sequences of these lengths."""
    return replace(
        sequences,
        tokens=sequences.tokens[index],
        offsets=compute_offsets(lengths),
        special=None if sequences.special is None else sequences.special[index],
        sentences=None if sequences.sentences is None else sequences.sentences[index],
        segments=None if sequences.segments is None else sequences.segments[index],
        words=None,
    )


def reorder_tokens(sequences: Sequences, index: Ints, order: Ints) -> Sequences:
    """Reorder the ordinary tokens at `index`; sentence boundaries move along, segments stay."""
    tokens, sentences = sequences.tokens.copy(), sequences.sentences
    tokens[index] = tokens[index[order]]
    if sentences is not None:
        sentences = sentences.copy()
        sentences[index] = sentences[index[order]]
    return replace(sequences, tokens=tokens, sentences=sentences, words=None)


def infill_spans(sequences: Sequences, spans: NoiseSpans, mask: int) -> Sequences:
    """Replace each span by one mask, which starts a sentence if the first token of its span did."""
    (index, sizes), size = find_ordinary_tokens(sequences), len(sequences.tokens)
    start, length, counts = spans
    end = start == np.repeat(np.cumsum(sizes), counts)  # after the text: before a closing special token, or at the end
    place = index[start - end] + end
    is_hidden = index_to_mask(index[spread(start, length)], size)
    keep = np.flatnonzero(~is_hidden)
    earlier = np.cumsum(np.bincount(place, minlength=size))[keep]  # masks before each remaining token
    source = np.full(len(keep) + len(place), -1)
    source[earlier + np.arange(len(keep))] = keep
    blank = source < 0
    output = gather_tokens(sequences, source, sequences.lengths - sum_groups(length, compute_offsets(counts)) + counts)
    output.tokens[blank] = mask
    if output.special is not None:
        output.special[blank] = False
    if output.sentences is not None and sequences.sentences is not None:
        output.sentences[blank] = sequences.sentences[place - end] & (length > 0)
    if output.segments is not None and sequences.segments is not None:
        output.segments[blank] = sequences.segments[place - end]
    return output


@spec
class Denoising(Objective):
    """The original text, generated from a noisy version (BART)."""

    noises: Annotated[tuple[Noise, ...], NonEmpty()] = (SentencePermutation(), TextInfilling())
    prefix: bool = False  # a decoder has bidirectional attention over the input

    shapes = ("encoder-decoder", "decoder")

    @property
    def sentences(self) -> bool:
        return any(noise.sentences for noise in self.noises)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "DenoisingCorruption":
        needs_mask = any(noise.uses_mask for noise in self.noises)
        mask = ensure_mask_token(vocabulary).require("mask", self.name) if needs_mask else IGNORE_INDEX
        return DenoisingCorruption(self.noises, mask, choose_layout(vocabulary, shape, self.name, prefix=self.prefix))

    def to_evaluation(self) -> "Denoising":
        """Return the same noises at their default rates."""
        return Denoising(noises=tuple(type(noise)() for noise in self.noises), prefix=self.prefix)


@dataclass(frozen=True, slots=True)
class DenoisingCorruption(Corruption):
    """Noisy source, original text as target."""

    noises: tuple[Noise, ...]
    mask: int
    layout: EncoderDecoderLayout | DecoderLayout

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self.layout.lengths(n, n)  # no noise makes a sequence longer

    @property
    def has_random_lengths(self) -> bool:
        return any(noise.removed_share for noise in self.noises)

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        """Return exact lengths: noises remove by the number of ordinary tokens and their random draws alone."""
        if rng is None:
            return self.lengths(lengths.lengths)
        left = lengths.lengths - lengths.special_counts
        for number, noise in enumerate(self.noises):
            left = noise.count_remaining(left, rng.derive(number))
        return self.layout.lengths(left + lengths.special_counts, lengths.lengths)

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        noisy = sequences
        for number, noise in enumerate(self.noises):
            noisy = noise.apply(noisy, self.mask, rng.derive(number))
        source = Sequences(tokens=noisy.tokens, offsets=noisy.offsets, segments=noisy.segments)
        return self.layout.combine(source, make_labels(sequences, sequences.tokens, sequences.lengths))

    def targets(self, tokens: int, sequences: int) -> int:
        # A decoder reads n + m tokens, n of them targets; m is at least what the noises leave of n, up to rounding.
        left = 1.0
        for noise in self.noises:
            left *= 1 - noise.removed_share
        return self.layout.targets(tokens, int((tokens + len(self.noises) * sequences) / (1 + left)) + 1)
