"""Translation language modelling: a sentence and its translation side by side, tokens of both hidden.

Paper: Lample and Conneau (2019), XLM. What is hidden on one side can be read off the other, so the model learns which
words translate which. The paper gives each language an embedding and counts positions anew in the second sentence; here
the segments are the languages, and positions go on, as in an ordinary pair. The rate is kept on each side by itself.
Input: documents of two sides (`pretune.data.parallel`); those of one side among them are masked as they are, so that
both objectives of the paper can be had in one run. Siblings: `masked` reads one language at a time.

    text     [CLS] the  cat   sits  [SEP] die   Katze sitzt [SEP]
    tokens   [CLS] the [MASK] sits  [SEP] die   Katze [MASK] [SEP]
    targets    -    -   cat    -     -     -     -    sitzt   -
"""

from dataclasses import dataclass

import numpy as np

from pretune.core.config import spec
from pretune.data.counters import Counters, to_uniform
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.objectives.base import BaseCorruption, ModelShape, Objective, Vocabulary, bound_target_slots
from pretune.objectives.mask_replacement import MaskReplacement, ReplacementShares, check_shares
from pretune.objectives.masked import mask_tokens
from pretune.objectives.segment_sampling import draw_bits_at, find_ordinary_tokens, round_randomly, sample_k


@spec
class Translation(Objective):
    """Masked tokens in a sentence and its translation, read together (XLM)."""

    rate: float = 0.15
    split: ReplacementShares = (0.8, 0.1, 0.1)
    copies: int | None = None

    shapes = ("encoder",)
    pairs = "kept"

    def __post_init__(self) -> None:
        check_shares(self.rate, self.split, self.copies)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "TranslationCorruption":
        return TranslationCorruption(self, MaskReplacement.from_vocabulary(self.split, vocabulary, self.name))

    def to_evaluation(self) -> "Translation":
        return Translation()


@dataclass(frozen=True, slots=True)
class TranslationCorruption(BaseCorruption):
    """A share of the tokens of each side of each sequence."""

    objective: Translation
    replacement: MaskReplacement

    @property
    def copies(self) -> int | None:
        return self.objective.copies

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        index, _ = find_ordinary_tokens(sequences)
        first = find_side_starts(sequences, index)
        sizes = np.diff(np.append(first, len(index)))
        chance = draw_bits_at(rng, 0, sequences, index[first])
        counts = round_randomly(self.objective.rate * sizes, to_uniform(chance))
        chosen = index[sample_k(draw_bits_at(rng, 1, sequences, index), sizes, counts)]
        return mask_tokens(sequences, chosen, self.replacement, rng)

    def targets(self, tokens: int, sequences: int) -> int:
        return bound_target_slots(self.objective.rate * tokens, sequences / 2, tokens)


def find_side_starts(sequences: Sequences, index: Ints) -> Ints:
    """[G] where in `index`, places of ordinary tokens, another sequence or the second side of it begins."""
    owner = sequences.find_owners()[index]
    side = owner * 2
    if sequences.sides is not None:
        begin = sequences.sides[owner]
        side += (begin > 0) & (index - sequences.offsets[owner] >= begin)
    return np.flatnonzero(np.append(True, side[1:] != side[:-1])[: len(side)])
