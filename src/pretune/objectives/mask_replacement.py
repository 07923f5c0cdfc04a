"""What a token that is to be predicted is shown as: the mask, another token drawn at random, or itself.

The shares 80/10/10 are BERT's (Devlin et al., 2019, appendix C.2): fine-tuning never shows the mask, so the model must
not learn that only masks have to be thought about.
"""

from dataclasses import dataclass

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.ragged import Ints
from pretune.objectives.base import Vocabulary
from pretune.objectives.segment_sampling import Bits

ReplacementShares = tuple[float, float, float]
"""Shares of the chosen tokens: masked, replaced, kept."""

_HALF_BITS = np.uint64(32)


@dataclass(frozen=True, slots=True, eq=False)
class MaskReplacement:
    """The shares, and what of the vocabulary they need."""

    shares: ReplacementShares
    mask: int
    random_ids: Ints  # all ordinary ids, where some are drawn

    @classmethod
    def from_vocabulary(cls, split: ReplacementShares, vocabulary: Vocabulary, objective: str) -> "MaskReplacement":
        """That of an objective; an error where the vocabulary lacks a mask or has nothing to draw from."""
        others = vocabulary.list_ordinary_ids() if split[1] else np.empty(0, dtype=np.int64)
        if split[1] and not len(others):
            raise UsageError(
                f"{objective} draws random tokens, and all {vocabulary.size} of this tokenizer are special"
            )
        return cls(split, vocabulary.require("mask", objective) if split[0] else IGNORE_INDEX, others)

    def replace_tokens(self, tokens: Ints, bits: Bits, share_bits: Bits | None = None) -> Ints:
        """[K] what tokens are shown as: a share of the lot by the upper half of 64 random bits, a token by the lower.

        With `kinds` those decide on the share, so that tokens with the same bits there are shown alike.
        """
        lot = (bits if share_bits is None else share_bits) >> _HALF_BITS
        masked, replaced, _ = self.shares
        if replaced:
            drawn = (bits & np.uint64(2**32 - 1)) * np.uint64(len(self.random_ids)) >> _HALF_BITS
            tokens = np.where(lot < (masked + replaced) * 2.0**32, self.random_ids[drawn], tokens)
        return np.where(lot < masked * 2.0**32, self.mask, tokens)


def check_shares(rate: float, split: ReplacementShares, copies: int | None) -> None:
    """Refuse numbers that mean nothing."""
    if not 0 < rate <= 1:
        raise UsageError(f"a rate of masking lies above 0 and up to 1, found {rate}")
    if min(split) < 0 or abs(sum(split) - 1) > 1e-6:
        raise UsageError(f"the shares masked, replaced and kept are 0 or more and sum to 1, found {split}")
    if copies is not None and copies < 1:
        raise UsageError(f"static masking has 1 copy or more, found {copies}; leave copies empty to mask anew")
