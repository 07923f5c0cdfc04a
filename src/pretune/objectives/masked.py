"""Masked language modelling: mask some tokens and predict them from both sides.

Paper: Devlin et al. (2019); dynamic masking: Liu et al. (2019); whole-word masking: the 2019 release of BERT.
Input: sentences, documents or pairs. Siblings: `span_masked` masks spans of words; `translation` masks tokens in two
languages at once; `replaced_token` fills the masks with a small model and detects the replaced tokens.

    text     The  cat  sat  on  the  mat           rate 15 %, of which
    tokens   The [MASK] sat  on  the  mat          80 % become the mask token,
    targets   -   cat   -    -    -    -           10 % a random token, 10 % stay
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import Ge, Gt, Le, NonNegative, Positive, SumsToOne, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import Counters
from pretune.data.sequences import Ints, Sequences
from pretune.data.stream import Corruption
from pretune.objectives.base import ModelShape, Objective, Vocabulary, bound_target_slots
from pretune.objectives.segment_sampling import (
    Bits,
    WordSpans,
    draw_bits_at,
    fill_budget,
    find_ordinary_tokens,
    round_randomly,
    sample_k,
    shuffle_groups,
)

Share = NonNegative[float]
ReplacementShares = Annotated[tuple[Share, Share, Share], SumsToOne()]
"""Shares of the target tokens: masked, replaced by a random token, kept."""

MaskingRate = Annotated[float, Gt(0), Le(1)]
"""Share of the tokens that are targets."""

_HALF_BITS = np.uint64(32)


@dataclass(frozen=True, slots=True, eq=False)
class MaskReplacement:
    """Replacement of target tokens in the input: the mask token, a random token, or the token itself.

    The shares 80/10/10 are BERT's (Devlin et al., 2019, appendix C.2): fine-tuning never shows the mask token, so some
    targets keep an ordinary token in the input.
    """

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


MAX_WORD_TOKENS = 16
"""Tokens per word: longer words (a line of dashes in characters) are split and masked in parts."""


@spec
class MaskingObjective(Objective):
    """Base of objectives that mask a share of the ordinary tokens of each sequence, for an encoder."""

    rate: MaskingRate = 0.15
    split: ReplacementShares = (0.8, 0.1, 0.1)  # masked, replaced by a random token, kept

    shapes = ("encoder",)
    difficulty_settings: ClassVar[tuple[str, ...]] = ("rate", "split")

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "MaskingCorruption":
        return MaskingCorruption(self, MaskReplacement.from_vocabulary(self.split, vocabulary, self.name))

    @abstractmethod
    def mask(self, sequences: Sequences, replacement: MaskReplacement, rng: Counters) -> Sequences:
        """Choose the targets, and replace them in the input."""

    def bound_targets(self, tokens: int, sequences: int) -> int:
        """Return the target slots for a batch of this many tokens and sequences."""
        return bound_target_slots(self.rate * tokens, sequences / 4, tokens)


@dataclass(frozen=True, slots=True)
class MaskingCorruption(Corruption):
    """The masking of an objective, with the ids of a vocabulary."""

    objective: MaskingObjective
    replacement: MaskReplacement

    @property
    def copies(self) -> int | None:
        return getattr(self.objective, "copies", None)

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        return self.objective.mask(sequences, self.replacement, rng)

    def targets(self, tokens: int, sequences: int) -> int:
        return self.objective.bound_targets(tokens, sequences)


@spec(kind="masked")
class MaskedLM(MaskingObjective):
    """Masked tokens or whole words, predicted from both sides (BERT, RoBERTa)."""

    words: bool = False  # whole-word masking
    copies: Positive[int] | None = None  # static masking: number of fixed maskings per text; None: dynamic
    final_rate: MaskingRate | None = None  # reached linearly in the epoch `rate_epochs`
    rate_epochs: Annotated[int, Ge(2)] = 10

    difficulty_settings = ("rate", "split", "words", "copies", "final_rate", "rate_epochs")

    def mask(self, sequences: Sequences, replacement: MaskReplacement, rng: Counters) -> Sequences:
        choose = choose_words if self.words else choose_tokens
        return mask_tokens(sequences, choose(sequences, self.compute_rate(sequences.epochs), rng), replacement, rng)

    def bound_targets(self, tokens: int, sequences: int) -> int:
        # The count of a sequence varies by the word that crosses its budget: little, even with character tokens.
        max_rate, variance = max(self.rate, self.final_rate or 0.0), 8 if self.words else 0.25
        return bound_target_slots(max_rate * tokens, sequences * variance, tokens)

    def compute_rate(self, epochs: Ints | None) -> float | NDArray[np.float64]:
        """Return the rate, by the epoch of each sequence [S] if it changes."""
        if self.final_rate is None or epochs is None:
            return self.rate
        return self.rate + (self.final_rate - self.rate) * np.minimum(epochs / (self.rate_epochs - 1), 1.0)


def choose_tokens(sequences: Sequences, rate: float | NDArray[np.float64], rng: Counters) -> Ints:
    """Sample a share of the ordinary tokens of each sequence; returns their positions [K]."""
    index, sizes = find_ordinary_tokens(sequences)
    counts = round_randomly(rate * sizes, rng.uniform(0))
    return index[sample_k(rng.bits(1, sizes), sizes, counts)]


def choose_words(sequences: Sequences, rate: float | NDArray[np.float64], rng: Counters) -> Ints:
    """Sample whole words, in all a share of the ordinary tokens of each sequence; returns token positions [K]."""
    words = WordSpans.from_sequences(sequences, max_length=MAX_WORD_TOKENS)
    order = shuffle_groups(rng.bits(1, words.sizes), words.sizes)
    length = words.length[order]
    budget = rate * words.count_tokens()
    return words.take(order[fill_budget(length, words.sizes, budget, rng.uniform(0))])


def mask_tokens(
    sequences: Sequences,
    positions: Ints,
    replacement: MaskReplacement,
    rng: Counters,
    use: int = 2,
    share_bits: Bits | None = None,
) -> Sequences:
    """Replace the tokens at some positions, by random bits of a use; the original tokens become the targets."""
    tokens, targets = sequences.tokens.copy(), np.full(len(sequences.tokens), IGNORE_INDEX)
    targets[positions] = sequences.tokens[positions]
    bits = draw_bits_at(rng, use, sequences, positions)
    tokens[positions] = replacement.replace_tokens(sequences.tokens[positions], bits, share_bits)
    return replace(sequences, tokens=tokens, targets=targets)
