"""Masked language modelling: hide some tokens, predict them from both sides.

Paper: Devlin et al. (2019); masked anew in every epoch: Liu et al. (2019); whole words: the 2019 release of BERT.
Input: sentences, documents or pairs. Siblings: `span_masked` hides runs of words; `translation` hides tokens in two
languages at once; `replaced_token` has a small model fill the blanks, and asks which tokens were filled.

    text     The  cat  sat  on  the  mat           rate 15 %, of which
    tokens   The [MASK] sat  on  the  mat          80 % are shown as the mask,
    targets   -   cat   -    -    -    -           10 % as another token, 10 % as they are
"""

from dataclasses import dataclass, replace

import numpy as np

from pretune.core.config import spec
from pretune.core.types import IGNORE_INDEX
from pretune.data.counters import Counters
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.objectives.base import (
    BaseCorruption,
    ModelShape,
    Objective,
    Vocabulary,
    bound_target_slots,
)
from pretune.objectives.mask_replacement import MaskReplacement, ReplacementShares, check_shares
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
"""Tokens of a word: a longer one, such as a line of dashes in characters, is masked as several."""


@spec(kind="masked")
class MaskedLM(Objective):
    """Masked tokens or whole words, predicted from both sides (BERT, RoBERTa)."""

    rate: float = 0.15
    split: ReplacementShares = (0.8, 0.1, 0.1)  # masked, replaced by a random token, kept
    words: bool = False  # all tokens of a word, or none
    copies: int | None = None  # so many fixed maskings of each text, one after the other; None: a new one every time

    shapes = ("encoder",)

    def __post_init__(self) -> None:
        check_shares(self.rate, self.split, self.copies)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "MaskedCorruption":
        return MaskedCorruption(self, MaskReplacement.from_vocabulary(self.split, vocabulary, self.name))

    def to_evaluation(self) -> "MaskedLM":
        """15 % of the tokens, 80/10/10, whatever the training."""
        return MaskedLM()


@dataclass(frozen=True, slots=True)
class MaskedCorruption(BaseCorruption):
    """A share of the tokens of each sequence, or of its words."""

    objective: MaskedLM
    replacement: MaskReplacement

    @property
    def copies(self) -> int | None:
        return self.objective.copies

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        chosen = (choose_words if self.objective.words else choose_tokens)(sequences, self.objective.rate, rng)
        return mask_tokens(sequences, chosen, self.replacement, rng)

    def targets(self, tokens: int, sequences: int) -> int:
        # A sequence's count varies by the word that crosses its budget: little, even where tokens are characters.
        return bound_target_slots(
            self.objective.rate * tokens, sequences * (8 if self.objective.words else 0.25), tokens
        )


def choose_tokens(sequences: Sequences, rate: float, rng: Counters) -> Ints:
    """[K] the places of a share of the ordinary tokens of each sequence."""
    index, sizes = find_ordinary_tokens(sequences)
    counts = round_randomly(rate * sizes, rng.uniform(0))
    return index[sample_k(rng.bits(1, sizes), sizes, counts)]


def choose_words(sequences: Sequences, rate: float, rng: Counters) -> Ints:
    """[K] the places of the tokens of whole words, in all a share of the ordinary tokens of each sequence."""
    words = WordSpans.from_sequences(sequences, max_length=MAX_WORD_TOKENS)
    order = shuffle_groups(rng.bits(1, words.sizes), words.sizes)
    length = words.length[order]
    budget = rate * words.count_tokens()
    return words.take(order[fill_budget(length, words.sizes, budget, rng.uniform(0))])


def mask_tokens(sequences: Sequences, positions: Ints, replacement: MaskReplacement, rng: Counters) -> Sequences:
    """The sequences with some tokens in disguise, and as targets what they were."""
    tokens, targets = sequences.tokens.copy(), np.full(len(sequences.tokens), IGNORE_INDEX)
    targets[positions] = sequences.tokens[positions]
    tokens[positions] = replacement.replace_tokens(
        sequences.tokens[positions], draw_bits_at(rng, 2, sequences, positions)
    )
    return replace(sequences, tokens=tokens, targets=targets)
