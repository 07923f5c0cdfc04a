"""Bidirectional language modelling: one stack predicts the next token, another the previous one.

Paper: Peters et al. (2018), ELMo, with recurrent stacks; here two causal stacks of any kind, which share the token
embedding and the head. Each sees one side only, so nothing is masked and every token is predicted twice; the states of
both are concatenated afterwards. Input: documents or packed blocks. Siblings: `causal` is the forward half alone;
`masked` sees both sides at once, but predicts 15 % of the tokens.

    tokens     The  cat  sat  down
    forward    cat  sat  down -
    backward   -    The  cat  sat        read from the right: down sat cat The
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss, Targets
from pretune.objectives.base import ModelShape, Objective, Vocabulary, count_vocabulary_targets
from pretune.objectives.causal import CausalCorruption


@runtime_checkable
class BidirectionalModel(Protocol):
    """Methods of a model that `bidirectional` calls."""

    @property
    def shape(self) -> ModelShape:
        """Return the shape of the model."""

    def compute_directional_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the states [N, W] of the left-to-right and of the right-to-left stack."""

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """Compute the summed loss of the vocabulary head at the batch's targets."""


@spec
class Bidirectional(Objective):
    """Next and previous token at every position, by two stacks (ELMo)."""

    shapes = ("two-way",)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> CausalCorruption:
        return CausalCorruption()

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        count = count_vocabulary_targets(batch)
        return {"forward": count, "backward": count}

    def loss(self, model: object, batch: Batch) -> Loss:
        if not isinstance(model, BidirectionalModel) or model.shape != "two-way":
            raise UsageError("bidirectional needs a model of the shape 'two-way' (two stacks)")
        forward, backward = model.compute_directional_states(batch)
        return Loss.from_parts(
            {"forward": model.loss(forward, batch), "backward": model.loss(backward, shift_targets_back(batch))}
        )


def shift_targets_back(batch: Batch) -> Batch:
    """Return the batch with the targets of the right-to-left stack: where token i predicts i + 1, i + 1 predicts i."""
    if batch.targets is None:
        raise UsageError("the batch has no targets; build its stream with the corruption of an objective")
    index, spare = batch.targets.index, batch.targets.labels == IGNORE_INDEX
    labels = torch.where(spare, IGNORE_INDEX, batch.tokens.index_select(0, index))
    return replace(batch, targets=Targets(index=torch.where(spare, 0, index + 1), labels=labels))
