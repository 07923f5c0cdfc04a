"""Sentence-order prediction, with masking: are two consecutive segments in order or swapped?

Paper: Lan et al. (2020), ALBERT: harder than `next_sentence`, whose negative pairs mostly differ in topic.
In half of the pairs the two segments are swapped; the samples build and label them (`pretune.data.pairs`).
Input: pairs of segments.

    tokens   [CLS] he bought a [MASK] of milk [SEP] the man went to the store [SEP]
    label    1                                      (0: in order, 1: swapped)
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from torch import Tensor

from pretune.core.config import spec
from pretune.core.types import Batch, Loss
from pretune.data.stream import Corruption
from pretune.objectives.base import ModelShape, Objective, PretrainingModel, Vocabulary
from pretune.objectives.masked import MaskedLM
from pretune.objectives.next_sentence import Masking, compute_loss_with_pairs, count_with_pairs


@spec
class SentenceOrder(Objective):
    """Masking, and whether two segments are in order or swapped (ALBERT)."""

    masking: Masking = MaskedLM()

    shapes = ("encoder",)
    pairs = "swapped"

    @property
    def words(self) -> bool:
        return self.masking.words

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> Corruption:
        return self.masking.bind(vocabulary, shape)

    def to_evaluation(self) -> Self:
        return replace(self, masking=self.masking.to_evaluation())

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return count_with_pairs(self.masking, batch)

    def loss(self, model: PretrainingModel, batch: Batch) -> Loss:
        return compute_loss_with_pairs(self.masking, model, batch)
