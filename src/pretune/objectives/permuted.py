"""Permutation language modelling: predict some tokens autoregressively in a random order.

Paper: Yang et al. (2019), XLNet. A target attends to the context and to the targets before it in the order: it is
predicted from both sides, targets depend on each other, and nothing is replaced by a mask. Input: documents or pairs of
segments. Siblings: `masked` predicts targets independently; `causal` uses the order of the text.

    tokens   The   cat   sat   on    the   mat    Tokens stay unchanged: later targets attend to the original.
    order     0     2     3    0      0     1     0: context; mat is predicted first, then cat, then sat
    targets   -    cat   sat   -      -    mat

One token in `every` (K = 6 in the paper) is a target, in spans: a span of L tokens, L uniform from 1 to `longest`, has
a uniform position in a stretch of K L tokens; stretches follow each other. The first is cut at a random position, so
every token is a target with probability exactly 1 / K, however short the sequence; in the paper the first stretch
starts with the text, so tokens at the edges are targets less often. Special tokens are always context.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from pretune.core.config import Ge, Positive, spec
from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import Counters
from pretune.data.sequences import Bools, Ints, Sequences, compute_starts, spread
from pretune.data.stream import Corruption
from pretune.objectives.base import ModelShape, Objective, Vocabulary, bound_target_slots
from pretune.objectives.segment_sampling import Bits, exclusive_cumsum, shuffle_groups, sum_groups

_FIRST_STRETCH, _LENGTH, _PLACE, _ORDER = range(4)
"""Streams of random numbers. NOTE: a changed number changes the draws of every run."""


@spec(kind="permuted")
class PermutationLM(Objective):
    """Some tokens in random order, each predicted from the context and the targets before it (XLNet)."""

    every: Annotated[int, Ge(2)] = 6  # K: one token in K is a target
    longest: Positive[int] = 5  # longest span, in tokens

    shapes = ("two-stream",)
    allows_streams = True
    difficulty_settings = ("every", "longest")

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "PermutedCorruption":
        return PermutedCorruption(self)


@dataclass(frozen=True, slots=True)
class PermutedCorruption(Corruption):
    """Prediction order and targets; the tokens stay unchanged."""

    objective: PermutationLM

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        is_target = self._draw_span_mask(sequences, rng)
        if sequences.special is not None:
            is_target &= ~sequences.special
        counts, index = sum_groups(is_target, sequences.offsets), np.flatnonzero(is_target)
        order = np.zeros(len(is_target), dtype=np.int64)
        order[index[shuffle_groups(rng.bits(_ORDER, counts), counts)]] = 1 + spread(np.zeros_like(counts), counts)
        return replace(sequences, order=order, targets=np.where(is_target, sequences.tokens, IGNORE_INDEX))

    def targets(self, tokens: int, sequences: int) -> int:
        """Bound the target slots: only stretches cut by the two edges of a sequence vary in their share of 1 / K.

        An edge that cuts a span of L tokens changes the count by at most (1 - 1 / K) L, with probability proportional
        to L. The variance of both edges together is at most that of one such edge (equal for K = 2, L = 1).
        """
        K, spans = self.objective.every, np.arange(1, self.objective.longest + 1)
        mean_square = float((spans**3).sum() / spans.sum())
        return bound_target_slots(tokens / K, sequences * (1 - 1 / K) ** 2 * mean_square, tokens)

    def _draw_span_mask(self, sequences: Sequences, rng: Counters) -> Bools:
        """Sample the spans; returns a mask of their tokens [T]."""
        K, longest, n = self.objective.every, self.objective.longest, sequences.lengths
        sizes = n // K + 2  # [S] stretches: an upper bound
        length = 1 + _draw_below(rng.bits(_LENGTH, sizes), np.asarray(longest))  # [B] span lengths
        # One number selects the first stretch, with probability proportional to its length, and where it is cut.
        ends = np.cumsum(K * np.arange(1, longest + 1))
        place = _draw_below(rng.bits(_FIRST_STRETCH), ends[-1:])
        first = np.searchsorted(ends, place, side="right")
        length[compute_starts(sizes)] = 1 + first
        cut = place - (ends[first] - K * (1 + first))
        start = exclusive_cumsum(K * length, sizes) - np.repeat(cut, sizes)  # of the stretch, then of its span
        start += _draw_below(rng.bits(_PLACE, sizes), (K - 1) * length + 1)
        room = np.repeat(n, sizes)
        low, high = np.clip(start, 0, room), np.clip(start + length, 0, room)
        spans = np.flatnonzero(low < high)
        base = np.repeat(sequences.offsets[:-1], sizes)[spans]
        steps = np.zeros(len(sequences.tokens) + 1, dtype=np.int8)  # spans may touch, but not overlap
        steps[base + low[spans]] = 1
        steps[base + high[spans]] -= 1
        return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)


def _draw_below(bits: Bits, limit: Ints) -> Ints:
    """Return integers in [0, limit): the upper half of the bits times the limit."""
    return np.asarray(((bits >> np.uint64(32)) * limit.astype(np.uint64)) >> np.uint64(32), dtype=np.int64)
