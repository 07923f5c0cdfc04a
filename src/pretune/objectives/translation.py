"""Translation language modelling: masked tokens in a sentence and its translation.

Paper: Lample and Conneau (2019), XLM. A token masked on one side can be predicted from the other, which aligns the two
languages. Segments mark the two sides or, for a model with language embeddings, the languages (`data.languages`). The
paper resets positions in the second sentence; here they continue, as in any pair. The rate holds on each side
separately. Input: parallel documents (`pretune.data.pairs`); documents of one side are masked as usual, so one run can
train both objectives of the paper. Siblings: `masked` reads one language at a time.

    text     [CLS] the  cat   sits  [SEP] die   Katze sitzt [SEP]
    tokens   [CLS] the [MASK] sits  [SEP] die   Katze [MASK] [SEP]
    targets    -    -   cat    -     -     -     -    sitzt   -
"""

import numpy as np

from pretune.core.config import Positive, spec
from pretune.data.sampling import Counters, to_uniform
from pretune.data.sequences import Ints, Sequences
from pretune.objectives.base import bound_target_slots
from pretune.objectives.masked import MaskingObjective, MaskReplacement, mask_tokens
from pretune.objectives.segment_sampling import draw_bits_at, find_ordinary_tokens, round_randomly, sample_k


@spec
class Translation(MaskingObjective):
    """Masked tokens in a sentence and its translation (XLM)."""

    copies: Positive[int] | None = None

    pairs = "kept"
    difficulty_settings = ("rate", "split", "copies")

    def mask(self, sequences: Sequences, replacement: MaskReplacement, rng: Counters) -> Sequences:
        """Mask a share of the ordinary tokens of each side."""
        index, _ = find_ordinary_tokens(sequences)
        first = find_side_starts(sequences, index)
        sizes = np.diff(np.append(first, len(index)))
        chance = draw_bits_at(rng, 0, sequences, index[first])
        counts = round_randomly(self.rate * sizes, to_uniform(chance))
        positions = index[sample_k(draw_bits_at(rng, 1, sequences, index), sizes, counts)]
        return mask_tokens(sequences, positions, replacement, rng)

    def bound_targets(self, tokens: int, sequences: int) -> int:
        return bound_target_slots(self.rate * tokens, sequences / 2, tokens)


def find_side_starts(sequences: Sequences, index: Ints) -> Ints:
    """Return the starts [G], in the ordinary tokens `index`, of sequences and of second sides."""
    owner = sequences.find_owners()[index]
    side = owner * 2
    if sequences.sides is not None:
        begin = sequences.sides[owner]
        side += (begin > 0) & (index - sequences.offsets[owner] >= begin)
    return np.flatnonzero(np.append(True, side[1:] != side[:-1])[: len(side)])
