"""Five ways to spoil a text, each a spec of its own, to be used one after another (Lewis et al., 2020, section 2.2).

    text                   A B C . D E .
    token_masking          A _ C . D E .
    token_deletion         A C . D E .
    text_infilling         A _ D _ E .          (B C . became one mask; nothing became another)
    sentence_permutation   D E . A B C .
    document_rotation      C . D E . A B

Special tokens are left where they are: the text moves between them. A noise says whether it `uses_mask` (needs a mask
token), whether it asks where `sentences` start, and what share of the tokens it `removed_share` at most; `apply` never makes
a sequence longer, and leaves at least one token of it. `count_remaining` tells how many ordinary tokens it will leave of so many,
by the same draws. Legend: T tokens, E ordinary tokens, S sequences.
"""

from dataclasses import replace
from math import exp
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.data.counters import Counters
from pretune.data.ragged import Ints, compute_offsets, compute_starts, spread
from pretune.data.sequences import Sequences
from pretune.objectives.segment_sampling import (
    exclusive_cumsum,
    find_ordinary_tokens,
    index_to_mask,
    round_randomly,
    sample_k,
    shuffle_groups,
    sum_groups,
)
from pretune.objectives.seq2seq import NoiseSpans, check_rate


@spec
class TokenMasking:
    """Some tokens become masks. The paper says "following BERT", hence the rate."""

    rate: float = 0.15

    uses_mask: ClassVar[bool] = True
    sentences: ClassVar[bool] = False
    removed_share: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_rate(self.rate, "the rate of token_masking")

    def count_remaining(self, sizes: Ints, rng: Counters) -> Ints:
        return sizes

    def apply(self, sequences: Sequences, mask: int, rng: Counters) -> Sequences:
        index, sizes = find_ordinary_tokens(sequences)
        tokens = sequences.tokens.copy()
        tokens[index[sample_k(rng.bits(1, sizes), sizes, round_randomly(self.rate * sizes, rng.uniform(0)))]] = mask
        return replace(sequences, tokens=tokens)


@spec
class TokenDeletion:
    """Some tokens are taken away, and nothing tells where, but never all. The paper gives no rate."""

    rate: float = 0.15

    uses_mask: ClassVar[bool] = False
    sentences: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_rate(self.rate, "the rate of token_deletion")

    @property
    def removed_share(self) -> float:
        return self.rate

    def count_remaining(self, sizes: Ints, rng: Counters) -> Ints:
        left: Ints = np.maximum(sizes - round_randomly(self.rate * sizes, rng.uniform(0)), np.minimum(sizes, 1))
        return left

    def apply(self, sequences: Sequences, mask: int, rng: Counters) -> Sequences:
        index, sizes = find_ordinary_tokens(sequences)
        counts = sizes - self.count_remaining(sizes, rng)
        gone = index_to_mask(index[sample_k(rng.bits(1, sizes), sizes, counts)], len(sequences.tokens))
        return gather_tokens(sequences, np.flatnonzero(~gone), sequences.lengths - counts)


@spec
class TextInfilling:
    """Spans become one mask each; a span of no tokens is a mask put between two.

    Lengths are drawn until they hold the wanted share of the tokens, the last one cut to fit; then spans and tokens
    that stay are put in a random order. So spans never overlap, and the share is exact. Where a short text drew so many
    empty spans that it would become longer, it goes without them.
    """

    rate: float = 0.3
    mean: float = 3.0  # of the Poisson distribution

    uses_mask: ClassVar[bool] = True
    sentences: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_rate(self.rate, "the rate of text_infilling")
        if not 1 <= self.mean <= 100:
            raise UsageError(f"the mean span of text_infilling must lie between 1 and 100, found {self.mean}")

    @property
    def removed_share(self) -> float:
        return self.rate

    def count_remaining(self, sizes: Ints, rng: Counters) -> Ints:
        budget = self.draw_budget(sizes, rng)
        return sizes - budget + self.draw_spans(budget, rng)[1]

    def apply(self, sequences: Sequences, mask: int, rng: Counters) -> Sequences:
        sizes = find_ordinary_tokens(sequences)[1]
        budget = self.draw_budget(sizes, rng)
        length, counts = self.draw_spans(budget, rng)
        slots = sizes - budget + counts  # a place for each token that stays and for each span
        chosen = sample_k(rng.bits(2, slots), slots, counts)
        order = np.argsort(chosen)
        chosen, length = chosen[order], length[order]  # spans in the order of the text
        free = chosen - np.repeat(compute_starts(slots), counts) - spread(np.zeros_like(counts), counts)
        start = (
            np.repeat(compute_starts(sizes), counts) + free + exclusive_cumsum(length, counts)
        )  # among the ordinary tokens
        return infill_spans(sequences, NoiseSpans(start, length, counts), mask)

    def draw_budget(self, sizes: Ints, rng: Counters) -> Ints:
        """How many tokens are in spans."""
        return round_randomly(self.rate * sizes, rng.uniform(0))

    def draw_spans(self, budget: Ints, rng: Counters) -> tuple[Ints, Ints]:
        """Lengths of spans that hold `budget[s]` tokens, and how many there are of each sequence."""
        table = poisson_cdf(self.mean)
        tries = np.where(budget > 0, np.ceil(1.3 * budget / self.mean) + 8, 0).astype(np.int64)
        while True:  # NOTE: draws are numbered, so more of them go on where fewer ended
            length = np.searchsorted(table, rng.uniform(1, tries), side="right")
            short = sum_groups(length, compute_offsets(tries)) < budget
            if not short.any():
                break
            tries = np.where(short, 2 * tries, tries)
        rest = np.repeat(budget, tries) - exclusive_cumsum(length, tries)
        length = np.minimum(length, rest)
        full = length > 0
        allowed = budget - sum_groups(full, compute_offsets(tries))
        empty = ~full & (rest > 0)
        use = full | (empty & (exclusive_cumsum(empty.astype(np.int64), tries) < np.repeat(allowed, tries)))
        return length[use], sum_groups(use, compute_offsets(tries))


@spec
class SentencePermutation:
    """Sentences come in a random order, each equally likely."""

    uses_mask: ClassVar[bool] = False
    sentences: ClassVar[bool] = True
    removed_share: ClassVar[float] = 0.0

    def count_remaining(self, sizes: Ints, rng: Counters) -> Ints:
        return sizes

    def apply(self, sequences: Sequences, mask: int, rng: Counters) -> Sequences:
        if sequences.sentences is None:
            raise UsageError("these sequences do not say where sentences start; open their stream with sentences=True")
        index, sizes = find_ordinary_tokens(sequences)
        begin = sequences.sentences[index]
        begin[compute_starts(sizes)[sizes > 0]] = True
        begin[1:] |= np.diff(index) > 1  # what follows a special token
        first = np.flatnonzero(begin)
        length = np.diff(np.append(first, len(index)))
        order = shuffle_groups(rng.bits(0, counts := sum_groups(begin, compute_offsets(sizes))), counts)
        return reorder_tokens(sequences, index, spread(first[order], length[order]))


@spec
class DocumentRotation:
    """The text begins with a token chosen at random, and what was before it comes at the end."""

    uses_mask: ClassVar[bool] = False
    sentences: ClassVar[bool] = False
    removed_share: ClassVar[float] = 0.0

    def count_remaining(self, sizes: Ints, rng: Counters) -> Ints:
        return sizes

    def apply(self, sequences: Sequences, mask: int, rng: Counters) -> Sequences:
        index, sizes = find_ordinary_tokens(sequences)
        turn = np.minimum((rng.uniform(0) * sizes).astype(np.int64), np.maximum(sizes - 1, 0))
        place = spread(turn, sizes)
        size = np.repeat(sizes, sizes)
        return reorder_tokens(
            sequences, index, np.repeat(compute_starts(sizes), sizes) + place - size * (place >= size)
        )


Noise = TokenMasking | TokenDeletion | TextInfilling | SentencePermutation | DocumentRotation


def poisson_cdf(mean: float) -> NDArray[np.float64]:
    """How likely lengths of up to 0, 1, 2, … are, as far as that can be told from 1."""
    found = np.empty(int(mean + 12 * np.sqrt(mean) + 12))
    found[0] = exp(-mean)
    for i in range(1, len(found)):
        found[i] = found[i - 1] * mean / i
    table = np.cumsum(found)
    table[-1] = 1.0
    return table


def gather_tokens(sequences: Sequences, index: Ints, lengths: Ints) -> Sequences:
    """The tokens at some places, in the order given, as sequences of these lengths."""
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
    """The ordinary tokens, at `index`, in another order; their sentences move along, segments stay."""
    tokens, sentences = sequences.tokens.copy(), sequences.sentences
    tokens[index] = tokens[index[order]]
    if sentences is not None:
        sentences = sentences.copy()
        sentences[index] = sentences[index[order]]
    return replace(sequences, tokens=tokens, sentences=sentences, words=None)


def infill_spans(sequences: Sequences, spans: NoiseSpans, mask: int) -> Sequences:
    """One mask for each span; a mask starts a sentence where the first token of its span did."""
    (index, sizes), size = find_ordinary_tokens(sequences), len(sequences.tokens)
    start, length, counts = spans
    end = start == np.repeat(np.cumsum(sizes), counts)  # behind the text: before what is special there, or last of all
    place = index[start - end] + end
    gone = index_to_mask(index[spread(start, length)], size)
    keep = np.flatnonzero(~gone)
    earlier = np.cumsum(np.bincount(place, minlength=size))[keep]  # masks before each token that stays
    source = np.full(len(keep) + len(place), -1)
    source[earlier + np.arange(len(keep))] = keep
    blank = source < 0
    made = gather_tokens(sequences, source, sequences.lengths - sum_groups(length, compute_offsets(counts)) + counts)
    made.tokens[blank] = mask
    if made.special is not None:
        made.special[blank] = False
    if made.sentences is not None and sequences.sentences is not None:
        made.sentences[blank] = sequences.sentences[place - end] & (length > 0)
    if made.segments is not None and sequences.segments is not None:
        made.segments[blank] = sequences.segments[place - end]
    return made
