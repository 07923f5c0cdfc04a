"""Two language models at once: one predicts the next token, the other the one before.

Paper: Peters et al. (2018), with recurrent stacks; here two causal stacks of any kind, which share the token table and
the head. Each sees one side only, so nothing has to be masked and every token is predicted twice; what they know is
put side by side afterwards. Input: documents, or blocks of many laid end to end. Siblings: `causal` is the first half
alone; `masked` sees both sides at once, but predicts 15 % of the tokens.

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
    """What it asks of a model."""

    def compute_directional_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The states [N, W] of a token and all before it, and of a token and all after it."""

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """The vocabulary head's summed loss at the batch's targets."""


@spec
class Bidirectional(Objective):
    """The next token and the one before, by two stacks (ELMo)."""

    shapes = ("two-way",)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> CausalCorruption:
        return CausalCorruption()

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        count = count_vocabulary_targets(batch)
        return {"forward": count, "backward": count}

    def loss(self, model: object, batch: Batch) -> Loss:
        if not isinstance(model, BidirectionalModel):
            raise UsageError("bidirectional trains a model that reads both ways; build it with two stacks")
        forward, backward = model.compute_directional_states(batch)
        return Loss.from_parts(
            {"forward": model.loss(forward, batch), "backward": model.loss(backward, shift_targets_back(batch))}
        )


def shift_targets_back(batch: Batch) -> Batch:
    """The same batch with other targets: where token i is to say token i + 1, that is to say token i."""
    if batch.targets is None:
        raise UsageError("this batch has no targets; an objective's lesson makes them")
    index, spare = batch.targets.index, batch.targets.labels == IGNORE_INDEX
    labels = torch.where(spare, IGNORE_INDEX, batch.tokens.index_select(0, index))
    return replace(batch, targets=Targets(index=torch.where(spare, 0, index + 1), labels=labels))
