"""Masked language modelling: mask some tokens and predict them from both sides.

Paper: Devlin et al. (2019); dynamic masking: Liu et al. (2019); whole-word masking: the 2019 release of BERT.
Input: sentences, documents or pairs. Siblings: `span_masked` masks spans of words; `translation` masks tokens in two
languages at once; `replaced_token` fills the masks with a small model and detects the replaced tokens.

    text     The  cat  sat  on  the  mat           rate 15 %, of which
    tokens   The [MASK] sat  on  the  mat          80 % become the mask token,
    targets   -   cat   -    -    -    -           10 % a random token, 10 % stay
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from pretune.core.config import Gt, Le, Positive, spec
from pretune.core.types import IGNORE_INDEX
from pretune.data.counters import Counters
from pretune.data.sequences import Ints, Sequences
from pretune.objectives.base import (
    BaseCorruption,
    ModelShape,
    Objective,
    Vocabulary,
    bound_target_slots,
)
from pretune.objectives.mask_replacement import MaskReplacement, ReplacementShares
from pretune.objectives.segment_sampling import (
    WordSpans,
    draw_bits_at,
    fill_budget,
    find_ordinary_tokens,
    round_randomly,
    sample_k,
    shuffle_groups,
)

MAX_WORD_TOKENS = 16
"""Tokens per word: longer words (a line of dashes in characters) are split and masked in parts."""


@spec(kind="masked")
class MaskedLM(Objective):
    """Masked tokens or whole words, predicted from both sides (BERT, RoBERTa)."""

    rate: Annotated[float, Gt(0), Le(1)] = 0.15
    split: ReplacementShares = (0.8, 0.1, 0.1)  # masked, replaced by a random token, kept
    words: bool = False  # whole-word masking
    copies: Positive[int] | None = None  # static masking: number of fixed maskings per text; None: dynamic

    shapes = ("encoder",)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "MaskedCorruption":
        return MaskedCorruption(self, MaskReplacement.from_vocabulary(self.split, vocabulary, self.name))

    def to_evaluation(self) -> "MaskedLM":
        """Return the paper's settings: 15 % of the tokens, 80/10/10."""
        return MaskedLM()


@dataclass(frozen=True, slots=True)
class MaskedCorruption(BaseCorruption):
    """Masked tokens or words: a share of the ordinary tokens of each sequence."""

    objective: MaskedLM
    replacement: MaskReplacement

    @property
    def copies(self) -> int | None:
        return self.objective.copies

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        positions = (choose_words if self.objective.words else choose_tokens)(sequences, self.objective.rate, rng)
        return mask_tokens(sequences, positions, self.replacement, rng)

    def targets(self, tokens: int, sequences: int) -> int:
        # The count of a sequence varies by the word that crosses its budget: little, even with character tokens.
        return bound_target_slots(
            self.objective.rate * tokens, sequences * (8 if self.objective.words else 0.25), tokens
        )


def choose_tokens(sequences: Sequences, rate: float, rng: Counters) -> Ints:
    """Sample a share of the ordinary tokens of each sequence; returns their positions [K]."""
    index, sizes = find_ordinary_tokens(sequences)
    counts = round_randomly(rate * sizes, rng.uniform(0))
    return index[sample_k(rng.bits(1, sizes), sizes, counts)]


def choose_words(sequences: Sequences, rate: float, rng: Counters) -> Ints:
    """Sample whole words, in all a share of the ordinary tokens of each sequence; returns token positions [K]."""
    words = WordSpans.from_sequences(sequences, max_length=MAX_WORD_TOKENS)
    order = shuffle_groups(rng.bits(1, words.sizes), words.sizes)
    length = words.length[order]
    budget = rate * words.count_tokens()
    return words.take(order[fill_budget(length, words.sizes, budget, rng.uniform(0))])


def mask_tokens(sequences: Sequences, positions: Ints, replacement: MaskReplacement, rng: Counters) -> Sequences:
    """Replace the tokens at some positions; the original tokens become the targets."""
    tokens, targets = sequences.tokens.copy(), np.full(len(sequences.tokens), IGNORE_INDEX)
    targets[positions] = sequences.tokens[positions]
    tokens[positions] = replacement.replace_tokens(
        sequences.tokens[positions], draw_bits_at(rng, 2, sequences, positions)
    )
    return replace(sequences, tokens=tokens, targets=targets)
