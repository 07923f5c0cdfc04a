"""Classification of a sequence or a pair: one linear layer on the pooled state of the family's paper.

Papers: Radford et al. (2018) read the last token, Devlin et al. (2019) [CLS] through the pooler, Liu et al. (2019) <s>
through a new dense layer, Lewis et al. (2020) the decoder's last state with the text on both sides. A pair is one
sequence, joined by the tokenizer's template. See also: `regression` (one number), `choice` (one score per option).

    [CLS] a fine film [SEP]  ->  state of [CLS]  ->  dense, tanh  ->  0.1 negative, 2.3 positive
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import torch
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
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.heads import PoolingConfig


@spec
class Classification:
    """One of several classes per sequence; cross-entropy."""

    classes: Positive[int]
    labels: tuple[str, ...] = ()  # names of the classes, in order
    pooling: PoolingConfig | None = None  # None: as in the family's paper
    dropout: Fraction = 0.1
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of `pooling`
    lm_loss_weight: float = 0.0  # weight of the auxiliary language modeling loss; 0.5 in GPT's paper

    def __post_init__(self) -> None:
        check_classes(self.classes, self.labels)
        if self.scalar_mix is not None and self.lm_loss_weight:
            raise UsageError(
                "a scalar mix freezes the model, so there is no language modeling loss; set lm_loss_weight to 0"
            )

    def resolve(self, spec: Model) -> Self:
        if self.lm_loss_weight and spec.head is None:
            raise UsageError("a language modeling loss needs a model with a vocabulary head; set lm_loss_weight to 0")
        return self if self.pooling else replace(self, pooling=resolve_pooling(spec))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        pooling = self.pooling or resolve_pooling(model.spec)
        if self.scalar_mix is not None:
            return self.scalar_mix.build(model, self.classes, tagging=False, seed=seed)
        return build_sequence_head(model, pooling, self.classes, self.dropout, seed)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        counts = {"loss": count_labels(get_labels(batch))}
        if self.lm_loss_weight:
            counts["language"] = count_labels(_get_targets(batch))
        return counts

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        labels, states = get_labels(batch), model.states(batch)
        task_loss = cross_entropy(model.head(states, batch), labels)
        if not self.lm_loss_weight:
            return task_loss
        lm_loss = replace(model.model.loss(states, batch), weight=self.lm_loss_weight)
        return Loss.from_parts({"loss": task_loss, "language": lm_loss})


def cross_entropy(logits: Tensor, labels: Tensor) -> Loss:
    """Return the loss summed over the rows `[R, K]` that have a label; without gradients also the correct ones."""
    total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    correct = None if torch.is_grad_enabled() else (logits.argmax(-1) == labels).sum()
    return Loss(sum=total, count=count_labels(labels), correct=correct)


def _get_targets(batch: Batch) -> Tensor:
    if batch.targets is None:
        raise UsageError("a language modeling loss needs a batch with targets; set lm_loss_weight to 0")
    return batch.targets.labels
