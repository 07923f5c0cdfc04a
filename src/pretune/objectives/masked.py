"""Masked language modelling: hide some tokens, predict them from both sides.

Paper: Devlin et al. (2019); masked anew in every epoch: Liu et al. (2019); whole words: the 2019 release of BERT.
Input: sentences, documents or pairs. Siblings: `span_masked` hides runs of words; `translation` hides tokens in two
languages at once; `replaced_token` has a small model fill the blanks, and asks which tokens were filled.

    text     The  cat  sat  on  the  mat           rate 15 %, of which
    tokens   The [MASK] sat  on  the  mat          80 % are shown as the mask,
    targets   -   cat   -    -    -    -           10 % as another token, 10 % as they are
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from pretune.core.config import spec
from pretune.core.types import IGNORE, Batch, Loss
from pretune.data.counters import Counters
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.objectives.base import ModelShape, Reader, Vocabulary, check_shape, spare, vocabulary_count
from pretune.objectives.mask_replacement import Disguise, Split, check_shares
from pretune.objectives.segment_sampling import Words, bits_at, filled, ordinary, rounded, shuffled, some

LONGEST = 16
"""Tokens of a word: a longer one, such as a line of dashes in characters, is masked as several."""


@spec
class Masked:
    """Masked tokens or whole words, predicted from both sides (BERT, RoBERTa)."""

    rate: float = 0.15
    split: Split = (0.8, 0.1, 0.1)  # masked, replaced by a random token, kept
    words: bool = False  # all tokens of a word, or none
    copies: int | None = None  # so many fixed maskings of each text, one after the other; None: a new one every time

    shapes: ClassVar[tuple[ModelShape, ...]] = ("encoder",)
    sentences: ClassVar[bool] = False
    pairs: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_shares(self.rate, self.split, self.copies)

    def open(self, vocabulary: Vocabulary, shape: ModelShape) -> "MaskedLesson":
        check_shape("masked", shape, self.shapes)
        return MaskedLesson(self, Disguise.of(self.split, vocabulary, "masked"))

    def evaluation(self) -> "Masked":
        """15 % of the tokens, 80/10/10, whatever the training."""
        return Masked()

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": vocabulary_count(batch)}

    def loss(self, model: Reader, batch: Batch) -> Loss:
        return self.terms(model, model.states(batch), batch)

    def terms(self, model: Reader, states: Tensor, batch: Batch) -> Loss:
        """The loss given the states, for objectives that add to it."""
        return model.loss(states, batch)


@dataclass(frozen=True, slots=True)
class MaskedLesson:
    """A share of the tokens of each sequence, or of its words."""

    masked: Masked
    disguise: Disguise

    @property
    def copies(self) -> int | None:
        return self.masked.copies

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return n, None

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        chosen = (choose_words if self.masked.words else choose_tokens)(sequences, self.masked.rate, rng)
        return hidden(sequences, chosen, self.disguise, rng)

    def targets(self, tokens: int, sequences: int) -> int:
        # A sequence's count varies by the word that crosses its budget: little, even where tokens are characters.
        return spare(self.masked.rate * tokens, sequences * (8 if self.masked.words else 0.25), tokens)


def choose_tokens(sequences: Sequences, rate: float, rng: Counters) -> Ints:
    """[K] the places of a share of the ordinary tokens of each sequence."""
    index, sizes = ordinary(sequences)
    counts = rounded(rate * sizes, rng.uniform(0))
    return index[some(rng.bits(1, sizes), sizes, counts)]


def choose_words(sequences: Sequences, rate: float, rng: Counters) -> Ints:
    """[K] the places of the tokens of whole words, in all a share of the ordinary tokens of each sequence."""
    words = Words.of(sequences, longest=LONGEST)
    order = shuffled(rng.bits(1, words.sizes), words.sizes)
    length = words.length[order]
    budget = rate * words.tokens()
    return words.take(order[filled(length, words.sizes, budget, rng.uniform(0))])


def hidden(sequences: Sequences, chosen: Ints, disguise: Disguise, rng: Counters) -> Sequences:
    """The sequences with some tokens in disguise, and as targets what they were."""
    tokens, targets = sequences.tokens.copy(), np.full(len(sequences.tokens), IGNORE)
    targets[chosen] = sequences.tokens[chosen]
    tokens[chosen] = disguise.tokens(sequences.tokens[chosen], bits_at(rng, 2, sequences, chosen))
    return replace(sequences, tokens=tokens, targets=targets)
