"""A model with what it is taught, as one module: what is wrapped for many devices and called by the loop."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from pretune.core.types import Batch, Loss


class TrainingObjective(Protocol):
    """What a model is trained to do: an objective, a task's head, a distillation."""

    def counts(self, batch: Any) -> Mapping[str, Tensor]:
        """How many targets each term of the loss has, known before the model runs."""

    def loss(self, model: Any, batch: Any) -> Loss:
        """The summed loss of a batch."""


class ModelWithLoss(nn.Module):
    """Its forward is the loss, so that hooks on a forward pass (several devices) see the whole of it."""

    def __init__(self, model: nn.Module, objective: TrainingObjective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Batch) -> Loss:
        return self.objective.loss(self.model, batch)
