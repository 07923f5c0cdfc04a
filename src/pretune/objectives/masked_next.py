"""Masked next-token prediction: mask some tokens, and predict each from both sides at the position before it.

Paper: Charpentier and Samuel (2024), GPT-BERT. A decoder attends to the whole text, and as in causal language modelling
the state of a position predicts the next token, so one model and one head learn both objectives: a `mixture` of
`causal` and this one is the paper's hybrid. Input: documents or blocks. Siblings: `masked` predicts at the masked
token itself, in an encoder; `prefix` has bidirectional attention over the first part.

    text     <s>  The   cat   sat  down
    tokens   <s>  The [MASK]  sat  down        every token attends to every other
    targets   -   cat    -     -    -
"""

from dataclasses import dataclass, replace

import numpy as np

from pretune.core.config import spec
from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import Counters
from pretune.data.sequences import Sequences
from pretune.data.stream import Corruption
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.masked import MaskedLM, MaskingCorruption


@spec(kind="masked_next")
class MaskedNextToken(Objective):
    """Masked tokens, predicted from both sides by the position before each (GPT-BERT)."""

    masking: MaskedLM = MaskedLM()

    shapes = ("decoder",)
    needs_attention = True
    difficulty_settings = ("masking",)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "MaskedNextCorruption":
        return MaskedNextCorruption(self.masking.build_corruption(vocabulary, shape))


@dataclass(frozen=True, slots=True)
class MaskedNextCorruption(Corruption):
    """Masked tokens, with targets one position earlier; the first token of a sequence stays."""

    masking: MaskingCorruption

    @property
    def copies(self) -> int | None:
        return self.masking.copies

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        corrupted_text = self.masking.corrupt(sequences, rng)
        assert corrupted_text.targets is not None
        first = sequences.offsets[:-1][sequences.lengths > 0]
        tokens, labels = corrupted_text.tokens.copy(), corrupted_text.targets.copy()
        tokens[first], labels[first] = sequences.tokens[first], IGNORE_INDEX
        targets = np.append(labels[1:], IGNORE_INDEX)[: len(labels)]
        return replace(corrupted_text, tokens=tokens, targets=targets, prefix=sequences.lengths)

    def targets(self, tokens: int, sequences: int) -> int:
        return self.masking.targets(tokens, sequences)
