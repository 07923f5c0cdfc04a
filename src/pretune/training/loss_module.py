"""Model and objective as one module, which is wrapped for several devices and called by the loop."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from pretune.core.types import Batch, Loss


class TrainingObjective(Protocol):
    """Training objective: a pre-training objective, a task head, a distillation loss."""

    def counts(self, batch: Any) -> Mapping[str, Tensor]:
        """Return the number of targets of each loss term, known before the forward pass."""

    def loss(self, model: Any, batch: Any) -> Loss:
        """Return the summed loss of a batch."""


class ModelWithLoss(nn.Module):
    """Model whose forward returns the loss, so that DDP and FSDP hooks see all of the computation."""

    def __init__(self, model: nn.Module, objective: TrainingObjective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Batch) -> Loss:
        return self.objective.loss(self.model, batch)
