"""Permutation language modelling: predict some tokens one after another, in a random order.

Paper: Yang et al. (2019). A target sees all of the context and the targets before it in the order, wherever they stand:
so it is predicted from both sides, targets depend on each other, and nothing is replaced by a mask. Input: documents,
or pairs of segments. Siblings: `masked` predicts each target without the others; `causal` has the order of the text.

    tokens   The   cat   sat   on    the   mat    Every token stays what it is: later targets see the real one.
    order     0     2     3    0      0     1     0: context; mat is predicted first, then cat, then sat
    targets   -    cat   sat   -      -    mat

Only one token in `every` (K = 6 in the paper) is a target, in spans: a span of L tokens, L uniform from 1 to `longest`,
lies anywhere in a stretch of K L tokens, and one stretch follows the other. The first is cut at a random place, so that
every token is a target with the probability 1 / K exactly, however short its sequence; the paper's first stretch starts
with the text, whose edges are then targets less often. Special tokens are context, whatever span they are in.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.counters import Counters
from pretune.data.ragged import Bools, Ints, compute_starts, spread
from pretune.data.sequences import Sequences
from pretune.objectives.base import BaseCorruption, ModelShape, Objective, Vocabulary, bound_target_slots
from pretune.objectives.segment_sampling import Bits, exclusive_cumsum, shuffle_groups, sum_groups

_FIRST_STRETCH, _LENGTH, _PLACE, _ORDER = range(4)
"""What random numbers are for. NOTE: a changed number changes what is drawn in every run."""


@spec(kind="permuted")
class PermutationLM(Objective):
    """Some tokens in a random order, each from all that came before it in that order (XLNet)."""

    every: int = 6  # one token in so many is a target
    longest: int = 5  # of a span, in tokens

    shapes = ("two-stream",)

    def __post_init__(self) -> None:
        for name, least in (("every", 2), ("longest", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} {getattr(self, name)} of permuted must be at least {least}")

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "PermutedCorruption":
        return PermutedCorruption(self)

    def to_evaluation(self) -> Self:
        """As in the paper, whatever share is trained on."""
        return type(self)()


@dataclass(frozen=True, slots=True)
class PermutedCorruption(BaseCorruption):
    """Ranks and labels: no token is changed."""

    objective: PermutationLM

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        chosen = self._draw_span_mask(sequences, rng)
        if sequences.special is not None:
            chosen &= ~sequences.special
        counts, found = sum_groups(chosen, sequences.offsets), np.flatnonzero(chosen)
        order = np.zeros(len(chosen), dtype=np.int64)
        order[found[shuffle_groups(rng.bits(_ORDER, counts), counts)]] = 1 + spread(np.zeros_like(counts), counts)
        return replace(sequences, order=order, targets=np.where(chosen, sequences.tokens, IGNORE_INDEX))

    def targets(self, tokens: int, sequences: int) -> int:
        """Whole stretches have exactly one target in K: only those vary that the two edges of a sequence cut.

        An edge that cuts a span of L adds or takes away (1 - 1 / K) L targets at most, and cuts it as often as it is
        long. The variance of both edges together is that of one such edge at most: with K = 2 and L = 1 as much.
        """
        K, spans = self.objective.every, np.arange(1, self.objective.longest + 1)
        squared = float((spans**3).sum() / spans.sum())
        return bound_target_slots(tokens / K, sequences * (1 - 1 / K) ** 2 * squared, tokens)

    def _draw_span_mask(self, sequences: Sequences, rng: Counters) -> Bools:
        """[T] which tokens lie in a span."""
        K, longest, n = self.objective.every, self.objective.longest, sequences.lengths
        sizes = n // K + 2  # [S] stretches, more than there can be
        length = 1 + _draw_below(rng.bits(_LENGTH, sizes), np.asarray(longest))  # [B] of each span
        # One number says which the first stretch is, each as often as it is long, and how much of it is cut off.
        ends = np.cumsum(K * np.arange(1, longest + 1))
        place = _draw_below(rng.bits(_FIRST_STRETCH), ends[-1:])
        first = np.searchsorted(ends, place, side="right")
        length[compute_starts(sizes)] = 1 + first
        cut = place - (ends[first] - K * (1 + first))
        start = exclusive_cumsum(K * length, sizes) - np.repeat(cut, sizes)  # of each stretch, then of the span in it
        start += _draw_below(rng.bits(_PLACE, sizes), (K - 1) * length + 1)
        room = np.repeat(n, sizes)
        low, high = np.clip(start, 0, room), np.clip(start + length, 0, room)
        some = np.flatnonzero(low < high)
        base = np.repeat(sequences.offsets[:-1], sizes)[some]
        steps = np.zeros(len(sequences.tokens) + 1, dtype=np.int8)  # spans do not overlap, but one may start at an end
        steps[base + low[some]] = 1
        steps[base + high[some]] -= 1
        return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)


def _draw_below(bits: Bits, limit: Ints) -> Ints:
    """Whole numbers from 0 to below the limits: the upper half of the bits times the limit."""
    return np.asarray(((bits >> np.uint64(32)) * limit.astype(np.uint64)) >> np.uint64(32), dtype=np.int64)
