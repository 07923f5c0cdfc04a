"""Predictions about pairs of segments, with masking: next sentence and sentence order.

Next-sentence prediction: does the second segment follow the first in its document? Paper: Devlin et al. (2019). In half
of the pairs the second segment is from another document; the samples build and label them (`pretune.data.pairs`). The
classifier reads the pooled vector of the first token. RoBERTa found no benefit.

    tokens   [CLS] the man [MASK] to the store [SEP] penguins are [MASK] ##less birds [SEP]
    label    1                                       (0: it follows, 1: it does not)

Sentence-order prediction: are two consecutive segments in order or swapped? Paper: Lan et al. (2020), ALBERT: harder
than `next_sentence`, whose negative pairs mostly differ in topic. In half of the pairs the two segments are swapped.

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
from pretune.objectives.base import (
    ModelShape,
    Objective,
    PretrainingModel,
    Vocabulary,
    count_pairs,
    pair_loss,
    rename_loss_term,
)
from pretune.objectives.masked import MaskedLM
from pretune.objectives.span_masked import SpanMaskedLM

Masking = MaskedLM | SpanMaskedLM


@spec
class _PairObjective(Objective):
    """Masking, and a label of each pair of segments."""

    masking: Masking = MaskedLM()

    shapes = ("encoder",)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> Corruption:
        return self.masking.bind(vocabulary, shape)

    def to_evaluation(self) -> Self:
        return replace(self, masking=self.masking.to_evaluation())

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {**rename_loss_term(self.masking.counts(batch), "masked"), "pair": count_pairs(batch)}

    def loss(self, model: PretrainingModel, batch: Batch) -> Loss:
        states = model.states(batch)
        terms = self.masking.loss_from_states(model, states, batch).get_terms()
        return Loss.from_parts({**rename_loss_term(terms, "masked"), "pair": pair_loss(model, states, batch)})


@spec
class NextSentence(_PairObjective):
    """Masking, and whether the second segment follows the first (BERT)."""

    pairs = "other"


@spec
class SentenceOrder(_PairObjective):
    """Masking, and whether two segments are in order or swapped (ALBERT)."""

    pairs = "swapped"
