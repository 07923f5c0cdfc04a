"""Sentence-order prediction: which of two neighbouring segments came first? Together with masking.

Paper: Lan et al. (2020), ALBERT: harder than `next_sentence`, whose broken pairs are mostly given away by their topic.
In half of the pairs the two segments are swapped; the samples do that and say so (`pretune.data.pairs`).
Input: pairs of segments.

    tokens   [CLS] he bought a [MASK] of milk [SEP] the man went to the store [SEP]
    label    1                                      (0: in order, 1: swapped)
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self

from torch import Tensor

from pretune.core.config import spec
from pretune.core.types import Batch, Loss
from pretune.objectives.base import ModelShape, Reader, Vocabulary, check_shape
from pretune.objectives.masked import Masked, MaskedLesson
from pretune.objectives.next_sentence import Masking, with_pair_count, with_pair_loss
from pretune.objectives.span_masked import SpanLesson


@spec
class SentenceOrder:
    """Masking, and whether two segments are in order or swapped (ALBERT)."""

    masking: Masking = Masked()

    shapes: ClassVar[tuple[ModelShape, ...]] = ("encoder",)
    sentences: ClassVar[bool] = False
    pairs: ClassVar[Literal["swapped"]] = "swapped"

    @property
    def words(self) -> bool:
        return self.masking.words

    def open(self, vocabulary: Vocabulary, shape: ModelShape) -> MaskedLesson | SpanLesson:
        check_shape("sentence_order", shape, self.shapes)
        return self.masking.open(vocabulary, shape)

    def evaluation(self) -> Self:
        return replace(self, masking=self.masking.evaluation())

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return with_pair_count(self.masking, batch)

    def loss(self, model: Reader, batch: Batch) -> Loss:
        return with_pair_loss(self.masking, model, batch)
