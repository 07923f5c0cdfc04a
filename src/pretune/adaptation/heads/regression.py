"""Regression for a sequence or a pair, such as the similarity of two sentences: mean squared error.

Paper: as for `classification`, with one output (STS-B in Devlin et al., 2019). Labels are floats; -100 means none.

    [CLS] a dog runs [SEP] a dog is running [SEP]  ->  4.6
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from torch import Tensor, nn

from pretune.adaptation.heads.base import HeadedModel, build_sequence_head, count_labels, get_labels, resolve_pooling
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.config import Fraction, spec
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.heads import PoolingConfig


@spec
class Regression:
    """One number per sequence; squared error."""

    pooling: PoolingConfig | None = None  # None: as in the family's paper
    dropout: Fraction = 0.1
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of `pooling`

    def resolve(self, spec: Model) -> Self:
        return self if self.pooling else replace(self, pooling=resolve_pooling(spec))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        if self.scalar_mix is not None:
            return self.scalar_mix.build(model, 1, tagging=False, seed=seed)
        return build_sequence_head(model, self.pooling or resolve_pooling(model.spec), 1, self.dropout, seed)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": count_labels(get_labels(batch))}

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        labels = get_labels(batch)
        error = model.head(model.states(batch), batch).squeeze(-1).float() - labels
        return Loss(sum=error.where(labels != IGNORE_INDEX, 0.0).square().sum(), count=count_labels(labels))
