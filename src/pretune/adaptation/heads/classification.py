"""Classes of a sequence or of a pair of them: one linear layer on what the family's paper reads.

Papers: Radford et al. (2018) read the last token, Devlin et al. (2019) [CLS] through the pooler, Liu et al. (2019) <s>
through a new dense layer, Lewis et al. (2020) the decoder's last state with the text on both sides. A pair is one
sequence, as the tokenizer's template joins it. Siblings: `regression` gives one number, `choice` one for each option.

    [CLS] a fine film [SEP]  ->  state of [CLS]  ->  dense, tanh  ->  0.1 negative, 2.3 positive
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.adaptation.heads.base import Learner, check_classes, known, labelled, reading_of, sequence_head
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE, Batch, Loss
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.pooling import Reading


@spec
class Classification:
    """One of several classes for every sequence, by cross-entropy."""

    classes: int
    labels: tuple[str, ...] = ()  # their names, in order
    reading: Reading | None = None  # None: as the family's paper does
    dropout: float = 0.1
    mix: Mixing | None = None  # all layers of a frozen model are read, in place of `reading`
    language: float = 0.0  # the weight of the language model's own loss beside it; 0.5 in GPT's paper

    def __post_init__(self) -> None:
        check_classes(self.classes, self.labels)
        if self.mix is not None and self.language:
            raise UsageError("a mix of layers leaves the model as it is, so it has no language loss; set language to 0")

    def resolve(self, spec: Model) -> Self:
        if self.language and spec.head is None:
            raise UsageError("a language loss beside the task needs a model with a vocabulary head; set language to 0")
        return self if self.reading else replace(self, reading=reading_of(spec))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        reading = self.reading or reading_of(model.spec)
        if self.mix is not None:
            return self.mix.build(model, self.classes, tagging=False, seed=seed)
        return sequence_head(model, reading, self.classes, self.dropout, seed)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        counts = {"loss": known(labelled(batch))}
        if self.language:
            counts["language"] = known(_targets(batch))
        return counts

    def loss(self, model: Learner, batch: Batch) -> Loss:
        labels, states = labelled(batch), model.states(batch)
        main = cross_entropy(model.head(states, batch), labels)
        if not self.language:
            return main
        beside = replace(model.model.loss(states, batch), weight=self.language)
        return Loss.of({"loss": main, "language": beside})


def cross_entropy(logits: Tensor, labels: Tensor) -> Loss:
    """Summed over the rows `[R, K]` that have a label; without gradients the right ones are counted."""
    total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE, reduction="sum")
    right = None if torch.is_grad_enabled() else (logits.argmax(-1) == labels).sum()
    return Loss(sum=total, count=known(labels), right=right)


def _targets(batch: Batch) -> Tensor:
    if batch.targets is None:
        raise UsageError("a language loss beside the task needs a batch with targets; set language to 0")
    return batch.targets.labels
