"""Model that records the inputs of a loss, so that targets and weights are those of the real loss."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pretune.core.types import IGNORE_INDEX, Batch, Loss, Targets
from pretune.data.sequences import Ints
from pretune.objectives.base import count_vocabulary_targets


class RecordedEdges(NamedTuple):
    """Positions of the tokens next to the span of every target [M], the position within it, and the labels."""

    left: Tensor
    right: Tensor
    place: Tensor
    labels: Tensor


class _UniformClassifier(nn.Module):
    """Binary classifier with equal logits."""

    def forward(self, features: Tensor) -> Tensor:
        return features.new_zeros(len(features), 2)


class RecordingModel:
    """Stand-in for a model of any shape. Its states are token positions, and its loss is 0.

    As a generator it samples ordinary tokens uniformly, from the given random numbers.
    """

    def __init__(self, token_ids: Ints) -> None:
        self.token_ids = torch.from_numpy(token_ids)
        self.recorded_targets: list[Targets] = []  # of the language-modelling head, call by call
        self.edges: RecordedEdges | None = None
        self.proposed_tokens: Tensor | None = None
        self.pair: nn.Module | None = _UniformClassifier()

    def states(self, batch: Batch) -> Tensor:
        """Return token positions [N, 1]."""
        return torch.arange(len(batch.tokens)).float()[:, None]

    def compute_directional_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the same states for both directions."""
        return self.states(batch), self.states(batch)

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """Record the targets; return a zero loss with their count."""
        assert batch.targets is not None
        self.recorded_targets.append(batch.targets)
        return Loss(sum=torch.zeros(()), count=count_vocabulary_targets(batch))

    def pool(self, states: Tensor, batch: Batch) -> Tensor:
        """Return zeros [C, 1]."""
        return states.new_zeros(batch.cells, 1)

    def compute_span_loss(self, left: Tensor, right: Tensor, place: Tensor, labels: Tensor) -> Loss:
        """Record the boundary positions, which the states hold; return a zero loss."""
        self.edges = RecordedEdges(left[:, 0].long(), right[:, 0].long(), place, labels)
        return Loss(sum=torch.zeros(()), count=(labels != IGNORE_INDEX).sum())

    def propose(self, batch: Batch, chance: Tensor) -> tuple[Loss, Tensor]:
        """Return a uniformly sampled token for every masked position."""
        self.proposed_tokens = self.token_ids[(chance * len(self.token_ids)).long()]
        return self.loss(self.states(batch), batch), self.proposed_tokens

    def detect(self, batch: Batch) -> Tensor:
        """Return zero logits [N]."""
        return torch.zeros(len(batch.tokens))
