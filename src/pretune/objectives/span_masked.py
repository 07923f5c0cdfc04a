"""Span masking: hide runs of whole words, and predict them from both sides, and from their edges alone.

Paper: Joshi et al. (2020), SpanBERT. A text is cut into runs of words whose lengths are drawn from a geometric law
(p 0.2, at most 10: 3.8 words on average); runs are hidden in random order until the rate is reached. As in the released
code the last is cut there, be it inside a word. Mask, random token or itself is decided for a span as a whole.
Input: sentences, documents or pairs. Siblings: `masked` hides tokens or words; `span_corruption` takes spans out.

    text     An  American  football  game  .          one span of three words
    tokens   An  [MASK]    [MASK]   [MASK]  .
    targets  -   American  football  game   -         the boundary objective reads "An" and "." only
    blanks  -1   0         0         0     -1
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from torch import Tensor

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE, Batch, Loss
from pretune.data.counters import Counters, unit
from pretune.data.ragged import Ints, begins, bounds, spread
from pretune.data.sequences import Sequences
from pretune.objectives.base import ModelShape, Reader, Vocabulary, check_shape, spare, vocabulary_count
from pretune.objectives.mask_replacement import Disguise, Split, check_shares
from pretune.objectives.segment_sampling import Bits, Words, before, bits_at, rounded, shuffled
from pretune.objectives.span_boundary import Boundary, boundary_loss


@spec
class Geometric:
    """How many words a span has: 1, 2, … each `1 - p` times as likely as the one before, none above `most`."""

    p: float = 0.2
    most: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.p < 1 or self.most < 1:
            raise UsageError(f"span lengths need p between 0 and 1 and most of 1 or more, found {self.p}, {self.most}")

    def draw(self, bits: Bits) -> Ints:
        """One length for each random number."""
        odds = np.cumsum((1 - self.p) ** np.arange(self.most))
        return np.searchsorted(odds[:-1] / odds[-1], unit(bits), side="right") + 1


@spec
class SpanMasked:
    """Masked spans of words, and optionally each of their words from the span's edges alone (SpanBERT)."""

    rate: float = 0.15
    split: Split = (0.8, 0.1, 0.1)  # of the spans: masked, replaced by random tokens, kept
    spans: Geometric = Geometric()
    boundary: Boundary | None = None  # asks for a model with a span head
    copies: int | None = None

    shapes: ClassVar[tuple[ModelShape, ...]] = ("encoder",)
    words: ClassVar[bool] = True
    sentences: ClassVar[bool] = False
    pairs: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_shares(self.rate, self.split, self.copies)

    def open(self, vocabulary: Vocabulary, shape: ModelShape) -> "SpanLesson":
        check_shape("span_masked", shape, self.shapes)
        return SpanLesson(self, Disguise.of(self.split, vocabulary, "span_masked"))

    def evaluation(self) -> Self:
        """15 % in 80/10/10 of the spans."""
        return replace(self, rate=0.15, split=(0.8, 0.1, 0.1), copies=None)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        count = vocabulary_count(batch)
        return {"loss": count} if self.boundary is None else {"masked": count, "boundary": count}

    def loss(self, model: Reader, batch: Batch) -> Loss:
        return self.terms(model, model.states(batch), batch)

    def terms(self, model: Reader, states: Tensor, batch: Batch) -> Loss:
        """The loss given the states, for objectives that add to it."""
        masked = model.loss(states, batch)
        if self.boundary is None:
            return masked
        boundary = replace(boundary_loss(model, states, batch), weight=self.boundary.weight)
        return Loss.of({"masked": masked, "boundary": boundary})


@dataclass(frozen=True, slots=True)
class SpanLesson:
    """Spans that make up a share of the tokens of each sequence."""

    masked: SpanMasked
    disguise: Disguise

    @property
    def copies(self) -> int | None:
        return self.masked.copies

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return n, None

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        words = Words.of(sequences)
        runs = cut(words, self.masked.spans.draw(rng.bits(0, words.sizes)))
        counts = rounded(self.masked.rate * words.tokens(), rng.uniform(1))
        spans = fill(runs, counts, rng.bits(2, runs.sizes))
        chosen = spread(spans.start, spans.length)
        tokens, targets = sequences.tokens.copy(), np.full(len(sequences.tokens), IGNORE)
        blanks = np.full(len(tokens), -1)
        targets[chosen] = tokens[chosen]
        blanks[chosen] = np.repeat(spread(np.zeros_like(spans.sizes), spans.sizes), spans.length)
        kinds = np.repeat(bits_at(rng, 3, sequences, spans.start), spans.length)
        tokens[chosen] = self.disguise.tokens(tokens[chosen], bits_at(rng, 4, sequences, chosen), kinds)
        return replace(sequences, tokens=tokens, targets=targets, blanks=blanks)

    def targets(self, tokens: int, sequences: int) -> int:
        return spare(self.masked.rate * tokens, sequences / 4, tokens)


class Runs(NamedTuple):
    """Runs of tokens, in order: their places and lengths [n], and how many each sequence has [S]."""

    start: Ints
    length: Ints
    sizes: Ints


def cut(words: Words, lengths: Ints) -> Runs:
    """All words as runs of the given numbers of words (one for each word, as many as need be are used).

    No run reaches over a special token or into the next sequence: there the last one ends early.
    """
    ends = words.start + words.length
    opens = np.append(True, words.start[1:] != ends[:-1])[: len(ends)]  # after a special token
    firsts = begins(words.sizes)
    opens[firsts[words.sizes > 0]] = True
    stretch = np.flatnonzero(opens)
    sizes = np.diff(np.append(stretch, len(ends)))
    done = before(lengths, sizes)
    first = (np.repeat(stretch, sizes) + done)[done < np.repeat(sizes, sizes)]
    last = np.append(first[1:], len(ends))[: len(first)] - 1
    return Runs(
        words.start[first], ends[last] - words.start[first], np.diff(np.searchsorted(first, bounds(words.sizes)))
    )


def fill(runs: Runs, counts: Ints, bits: Bits) -> Runs:
    """Some of the runs, chosen by random bits, with `counts[s]` tokens in sequence s; the last to come is cut."""
    order = shuffled(bits, runs.sizes)
    length = runs.length[order]
    used = np.empty_like(length)
    used[order] = np.clip(np.repeat(counts, runs.sizes) - before(length, runs.sizes), 0, length)
    taken = np.flatnonzero(used)
    sizes = np.diff(np.searchsorted(taken, bounds(runs.sizes)))
    return Runs(runs.start[taken], used[taken], sizes)
