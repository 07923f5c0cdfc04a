"""Masked tokens under four masks of attention: one encoder learns to read in every direction.

Paper: Dong et al. (2019), UniLM. Input: documents, blocks or pairs of segments. Each sequence is read in one of four
ways (`Batch.view`): by a third in both directions, by a third as sequence to sequence (the first segment sees itself,
the second sees the first and its own past), by a sixth from left to right and by a sixth from right to left. In all of
them 15 % of the tokens are masked and predicted, each by what it may see. A sequence without a second segment is parted
at random, as by `prefix`. The paper masks two or three neighbours at once in a fifth of the cases; here tokens are
masked one by one. Siblings: `masked` is the first way alone; `prefix` predicts every token of a second part.

    tokens   a _ c | d _ f            d may see    both       a _ c d _ f
    targets  - b - | - e -                         left       a _ c d
                                                   right            d _ f
                                                   sequence   a _ c d
"""

from dataclasses import dataclass, replace

import numpy as np

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.data.counters import Counters
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.nn.attention_mask import MaskKind
from pretune.objectives.base import BaseCorruption, ModelShape, Objective, Vocabulary, bound_target_slots
from pretune.objectives.mask_replacement import MaskReplacement, ReplacementShares, check_shares
from pretune.objectives.masked import choose_tokens, mask_tokens
from pretune.objectives.prefix import draw_split_points
from pretune.objectives.segment_sampling import sum_groups

Shares = tuple[float, float, float, float]
"""How often a sequence is read in both directions, from the left, from the right, and as sequence to sequence."""


@spec(kind="multitask_masked")
class MultitaskMaskedLM(Objective):
    """Masked tokens, read in both directions, from the left, from the right, or after a first part (UniLM)."""

    rate: float = 0.15
    split: ReplacementShares = (0.8, 0.1, 0.1)  # masked, replaced by a random token, kept
    shares: Shares = (1 / 3, 1 / 6, 1 / 6, 1 / 3)  # both, left, right, sequence to sequence

    shapes = ("encoder",)

    def __post_init__(self) -> None:
        check_shares(self.rate, self.split, None)
        if min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise UsageError(f"the shares of the four ways to read are 0 or more and sum to 1, found {self.shares}")

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "MultitaskMaskedCorruption":
        return MultitaskMaskedCorruption(self, MaskReplacement.from_vocabulary(self.split, vocabulary, self.name))

    def to_evaluation(self) -> "MultitaskMaskedLM":
        """15 % of the tokens, 80/10/10, whatever the training; the ways to read as they are."""
        return MultitaskMaskedLM(shares=self.shares)


@dataclass(frozen=True, slots=True)
class MultitaskMaskedCorruption(BaseCorruption):
    """Some tokens masked, and a way to read for each sequence."""

    objective: MultitaskMaskedLM
    replacement: MaskReplacement

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        ways = np.cumsum(self.objective.shares)[:-1]
        view = np.searchsorted(ways, rng.uniform(3), side="right")
        prefix = np.where(view == MaskKind.PREFIX, measure_first_segments(sequences, rng), 0)
        masked = mask_tokens(sequences, choose_tokens(sequences, self.objective.rate, rng), self.replacement, rng)
        return replace(masked, view=view, prefix=prefix)

    def targets(self, tokens: int, sequences: int) -> int:
        return bound_target_slots(self.objective.rate * tokens, sequences / 4, tokens)


def measure_first_segments(sequences: Sequences, rng: Counters) -> Ints:
    """[S] the tokens of the first segment, or up to a random point where there is no second."""
    split = draw_split_points(sequences, rng.derive(0))
    if sequences.segments is None:
        return split
    first = sum_groups(sequences.segments == 0, sequences.offsets)
    return np.where(first < sequences.lengths, first, split)
