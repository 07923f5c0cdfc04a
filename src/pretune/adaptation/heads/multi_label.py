"""Multi-label classification of a sequence or a pair: an independent probability for each label.

Paper: as for `classification`, with a sigmoid per label instead of a softmax (`problem_type` of `transformers`:
"multi_label_classification"). The labels of a sequence are a row of 0 and 1 `[C, K]`; -100 means none.

    [CLS] long but funny [SEP]  ->  2.1 humour, 1.4 pace, -3.0 music
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn

from pretune.adaptation.heads.base import (
    HeadedModel,
    build_sequence_head,
    check_classes,
    count_labels,
    get_labels,
    resolve_pooling,
)
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.config import Fraction, Positive, spec
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.heads import PoolingConfig


@spec
class MultiLabel:
    """Any number of labels per sequence; binary cross-entropy for each."""

    classes: Positive[int]
    labels: tuple[str, ...] = ()  # names of the labels, in order
    pooling: PoolingConfig | None = None  # None: as in the family's paper
    dropout: Fraction = 0.1
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of `pooling`

    def __post_init__(self) -> None:
        check_classes(self.classes, self.labels)

    def resolve(self, spec: Model) -> Self:
        return self if self.pooling else replace(self, pooling=resolve_pooling(spec))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        if self.scalar_mix is not None:
            return self.scalar_mix.build(model, self.classes, tagging=False, seed=seed)
        return build_sequence_head(model, self.pooling or resolve_pooling(model.spec), self.classes, self.dropout, seed)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": count_labels(get_labels(batch))}

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        """Return the loss summed over labels and sequences; the count is that of all decisions."""
        labels = get_labels(batch)
        logits = model.head(model.states(batch), batch).float()
        losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return Loss(sum=losses.where(labels != IGNORE_INDEX, 0.0).sum(), count=count_labels(labels))
