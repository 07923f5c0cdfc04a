"""Span masking: hide runs of whole words, and predict them from both sides, and from their edges alone.

Paper: Joshi et al. (2020), SpanBERT. A text is cut into runs of words whose lengths are drawn from a geometric law
(p 0.2, at most 10: 3.8 words on average); runs are hidden in random order until the rate is reached. As in the released
code the last is cut there, be it inside a word. Mask, random token or itself is decided for a span as a whole.
Input: sentences, documents or pairs. Siblings: `objective` hides tokens or words; `span_corruption` takes spans out.

    text     An  American  football  game  .          one span of three words
    tokens   An  [MASK]    [MASK]   [MASK]  .
    targets  -   American  football  game   -         the boundary objective reads "An" and "." only
    blanks  -1   0         0         0     -1
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.counters import Counters, to_uniform
from pretune.data.ragged import Ints, compute_offsets, compute_starts, spread
from pretune.data.sequences import Sequences
from pretune.objectives.base import (
    BaseCorruption,
    ModelShape,
    Objective,
    PretrainingModel,
    Vocabulary,
    bound_target_slots,
    count_vocabulary_targets,
)
from pretune.objectives.mask_replacement import MaskReplacement, ReplacementShares, check_shares
from pretune.objectives.segment_sampling import (
    Bits,
    WordSpans,
    draw_bits_at,
    exclusive_cumsum,
    round_randomly,
    shuffle_groups,
)
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
        return np.searchsorted(odds[:-1] / odds[-1], to_uniform(bits), side="right") + 1


@spec(kind="span_masked")
class SpanMaskedLM(Objective):
    """Masked spans of words, and optionally each of their words from the span's edges alone (SpanBERT)."""

    rate: float = 0.15
    split: ReplacementShares = (0.8, 0.1, 0.1)  # of the spans: masked, replaced by random tokens, kept
    spans: Geometric = Geometric()
    boundary: Boundary | None = None  # asks for a model with a span head
    copies: int | None = None

    shapes = ("encoder",)
    words = True

    def __post_init__(self) -> None:
        check_shares(self.rate, self.split, self.copies)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "SpanMaskedCorruption":
        return SpanMaskedCorruption(self, MaskReplacement.from_vocabulary(self.split, vocabulary, self.name))

    def to_evaluation(self) -> Self:
        """15 % in 80/10/10 of the spans."""
        return replace(self, rate=0.15, split=(0.8, 0.1, 0.1), copies=None)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        count = count_vocabulary_targets(batch)
        return {"loss": count} if self.boundary is None else {"masked": count, "boundary": count}

    def loss_from_states(self, model: PretrainingModel, states: Tensor, batch: Batch) -> Loss:
        """The loss given the states, for objectives that add to it."""
        masked = model.loss(states, batch)
        if self.boundary is None:
            return masked
        boundary = replace(boundary_loss(model, states, batch), weight=self.boundary.weight)
        return Loss.from_parts({"masked": masked, "boundary": boundary})


@dataclass(frozen=True, slots=True)
class SpanMaskedCorruption(BaseCorruption):
    """Spans that make up a share of the tokens of each sequence."""

    objective: SpanMaskedLM
    replacement: MaskReplacement

    @property
    def copies(self) -> int | None:
        return self.objective.copies

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        words = WordSpans.from_sequences(sequences)
        runs = cut_runs(words, self.objective.spans.draw(rng.bits(0, words.sizes)))
        counts = round_randomly(self.objective.rate * words.count_tokens(), rng.uniform(1))
        spans = fill_runs(runs, counts, rng.bits(2, runs.sizes))
        chosen = spread(spans.start, spans.length)
        tokens, targets = sequences.tokens.copy(), np.full(len(sequences.tokens), IGNORE_INDEX)
        blanks = np.full(len(tokens), -1)
        targets[chosen] = tokens[chosen]
        blanks[chosen] = np.repeat(spread(np.zeros_like(spans.sizes), spans.sizes), spans.length)
        kinds = np.repeat(draw_bits_at(rng, 3, sequences, spans.start), spans.length)
        tokens[chosen] = self.replacement.replace_tokens(tokens[chosen], draw_bits_at(rng, 4, sequences, chosen), kinds)
        return replace(sequences, tokens=tokens, targets=targets, blanks=blanks)

    def targets(self, tokens: int, sequences: int) -> int:
        return bound_target_slots(self.objective.rate * tokens, sequences / 4, tokens)


class WordRuns(NamedTuple):
    """Runs of tokens, in order: their places and lengths [n], and how many each sequence has [S]."""

    start: Ints
    length: Ints
    sizes: Ints


def cut_runs(words: WordSpans, lengths: Ints) -> WordRuns:
    """All words as runs of the given numbers of words (one for each word, as many as need be are used).

    No run reaches over a special token or into the next sequence: there the last one ends early.
    """
    ends = words.start + words.length
    opens = np.append(True, words.start[1:] != ends[:-1])[: len(ends)]  # after a special token
    firsts = compute_starts(words.sizes)
    opens[firsts[words.sizes > 0]] = True
    stretch = np.flatnonzero(opens)
    sizes = np.diff(np.append(stretch, len(ends)))
    done = exclusive_cumsum(lengths, sizes)
    first = (np.repeat(stretch, sizes) + done)[done < np.repeat(sizes, sizes)]
    last = np.append(first[1:], len(ends))[: len(first)] - 1
    return WordRuns(
        words.start[first],
        ends[last] - words.start[first],
        np.diff(np.searchsorted(first, compute_offsets(words.sizes))),
    )


def fill_runs(runs: WordRuns, counts: Ints, bits: Bits) -> WordRuns:
    """Some of the runs, chosen by random bits, with `counts[s]` tokens in sequence s; the last to come is cut."""
    order = shuffle_groups(bits, runs.sizes)
    length = runs.length[order]
    used = np.empty_like(length)
    used[order] = np.clip(np.repeat(counts, runs.sizes) - exclusive_cumsum(length, runs.sizes), 0, length)
    taken = np.flatnonzero(used)
    sizes = np.diff(np.searchsorted(taken, compute_offsets(runs.sizes)))
    return WordRuns(runs.start[taken], used[taken], sizes)
