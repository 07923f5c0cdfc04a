"""Replacement of target tokens in the input: the mask token, a random token, or the token itself.

The shares 80/10/10 are BERT's (Devlin et al., 2019, appendix C.2): fine-tuning never shows the mask token, so some
targets keep an ordinary token in the input.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from pretune.core.config import Constraint, NonNegative
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Ints
from pretune.objectives.base import Vocabulary
from pretune.objectives.segment_sampling import Bits


class SumsToOne(Constraint):
    """Sum of 1 over a tuple of shares."""

    def allows(self, value: Any) -> bool:
        return bool(abs(sum(value) - 1) <= 1e-6)

    def __str__(self) -> str:
        return "shares with a sum of 1"


Share = NonNegative[float]
ReplacementShares = Annotated[tuple[Share, Share, Share], SumsToOne()]
"""Shares of the target tokens: masked, replaced by a random token, kept."""

_HALF_BITS = np.uint64(32)


@dataclass(frozen=True, slots=True, eq=False)
class MaskReplacement:
    """Shares of the replacements, the mask token and the ids for random tokens."""

    shares: ReplacementShares
    mask: int
    random_ids: Ints  # all ordinary ids; empty if the share of random tokens is 0

    @classmethod
    def from_vocabulary(cls, split: ReplacementShares, vocabulary: Vocabulary, objective: str) -> "MaskReplacement":
        """Return the replacement for an objective; UsageError if the vocabulary has no mask or no ordinary tokens."""
        random_ids = vocabulary.list_ordinary_ids() if split[1] else np.empty(0, dtype=np.int64)
        if split[1] and not len(random_ids):
            raise UsageError(
                f"{objective} samples random tokens, but all {vocabulary.size} tokens of this tokenizer are special"
            )
        return cls(split, vocabulary.require("mask", objective) if split[0] else IGNORE_INDEX, random_ids)

    def replace_tokens(self, tokens: Ints, bits: Bits, share_bits: Bits | None = None) -> Ints:
        """Return the input tokens [K]: the upper half of the 64 random bits selects the share, the lower the token.

        With `share_bits` these select the share, so that tokens with equal share bits are replaced alike.
        """
        lot = (bits if share_bits is None else share_bits) >> _HALF_BITS
        mask_share, random_share, _ = self.shares
        if random_share:
            index = (bits & np.uint64(2**32 - 1)) * np.uint64(len(self.random_ids)) >> _HALF_BITS
            tokens = np.where(lot < (mask_share + random_share) * 2.0**32, self.random_ids[index], tokens)
        return np.where(lot < mask_share * 2.0**32, self.mask, tokens)
