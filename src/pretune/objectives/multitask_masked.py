"""Multitask masked language modelling: one encoder, trained with four attention masks.

Paper: Dong et al. (2019), UniLM. Input: documents, blocks or pairs of segments. Each sequence has one of four attention
masks (`Batch.view`): bidirectional (1/3), sequence to sequence (1/3: the first segment attends to itself, the second to
the first and to its own past), left to right (1/6) and right to left (1/6). Under each, 15 % of the tokens are masked
and predicted. A sequence without a second segment is split at random, as by `prefix`. The paper masks two or three
neighbours at once in a fifth of the cases; here tokens are masked one by one. Siblings: `masked` has the bidirectional
mask only; `prefix` predicts every token of the second part.

    tokens   a _ c | d _ f            d attends to both       a _ c d _ f
    targets  - b - | - e -                         left       a _ c d
                                                   right            d _ f
                                                   sequence   a _ c d
"""

from dataclasses import replace
from typing import Annotated

import numpy as np

from pretune.core.config import SumsToOne, spec
from pretune.data.sampling import Counters
from pretune.data.sequences import Ints, Sequences
from pretune.nn.attention_mask import MaskKind
from pretune.objectives.masked import MaskingObjective, MaskReplacement, Share, choose_tokens, mask_tokens
from pretune.objectives.prefix import draw_split_points
from pretune.objectives.segment_sampling import sum_groups

Shares = Annotated[tuple[Share, Share, Share, Share], SumsToOne()]
"""Shares of the attention masks: bidirectional, left to right, right to left, sequence to sequence."""


@spec(kind="multitask_masked")
class MultitaskMaskedLM(MaskingObjective):
    """Masked tokens under four attention masks: bidirectional, left to right, right to left, seq2seq (UniLM)."""

    shares: Shares = (1 / 3, 1 / 6, 1 / 6, 1 / 3)  # bidirectional, left to right, right to left, sequence to sequence

    def mask(self, sequences: Sequences, replacement: MaskReplacement, rng: Counters) -> Sequences:
        """Mask tokens, and draw an attention mask for each sequence."""
        bounds = np.cumsum(self.shares)[:-1]
        view = np.searchsorted(bounds, rng.uniform(3), side="right")
        prefix = np.where(view == MaskKind.PREFIX, measure_first_segments(sequences, rng), 0)
        corruption = mask_tokens(sequences, choose_tokens(sequences, self.rate, rng), replacement, rng)
        return replace(corruption, view=view, prefix=prefix)


def measure_first_segments(sequences: Sequences, rng: Counters) -> Ints:
    """Count the tokens of the first segment [S]; up to a random point if there is no second."""
    split = draw_split_points(sequences, rng.derive(0))
    if sequences.segments is None:
        return split
    first = sum_groups(sequences.segments == 0, sequences.offsets)
    return np.where(first < sequences.lengths, first, split)
