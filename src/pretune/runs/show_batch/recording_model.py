"""A model that learns nothing and remembers what it was asked: so targets and weights are those of the real loss."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pretune.core.types import IGNORE_INDEX, Batch, Loss, Targets
from pretune.data.ragged import Ints
from pretune.objectives.base import count_vocabulary_targets


class RecordedEdges(NamedTuple):
    """Places of the tokens beside the span of every target [M], the place inside it, and what is to be said."""

    left: Tensor
    right: Tensor
    place: Tensor
    labels: Tensor


class _UniformClassifier(nn.Module):
    """Two classes, none likelier."""

    def forward(self, pooled: Tensor) -> Tensor:
        return pooled.new_zeros(len(pooled), 2)


class RecordingModel:
    """It stands where any shape of model may stand. Its states are the places of the tokens, and its loss is 0.

    As a generator it draws any ordinary token, by the numbers it is given.
    """

    def __init__(self, token_ids: Ints) -> None:
        self.token_ids = torch.from_numpy(token_ids)
        self.recorded_targets: list[Targets] = []  # what the vocabulary head was asked, one time after the other
        self.edges: RecordedEdges | None = None
        self.proposed_tokens: Tensor | None = None
        self.pair: nn.Module | None = _UniformClassifier()

    def states(self, batch: Batch) -> Tensor:
        """[N, 1]"""
        return torch.arange(len(batch.tokens)).float()[:, None]

    def compute_directional_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The same for both."""
        return self.states(batch), self.states(batch)

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """Nothing, of as many targets as there are."""
        assert batch.targets is not None
        self.recorded_targets.append(batch.targets)
        return Loss(sum=torch.zeros(()), count=count_vocabulary_targets(batch))

    def pool(self, states: Tensor, batch: Batch) -> Tensor:
        """[C, 1]"""
        return states.new_zeros(batch.cells, 1)

    def compute_span_loss(self, left: Tensor, right: Tensor, place: Tensor, labels: Tensor) -> Loss:
        """The states are places, so those of the edges are known."""
        self.edges = RecordedEdges(left[:, 0].long(), right[:, 0].long(), place, labels)
        return Loss(sum=torch.zeros(()), count=(labels != IGNORE_INDEX).sum())

    def propose(self, batch: Batch, chance: Tensor) -> tuple[Loss, Tensor]:
        """A token for every blank, any as likely as any other."""
        self.proposed_tokens = self.token_ids[(chance * len(self.token_ids)).long()]
        return self.loss(self.states(batch), batch), self.proposed_tokens

    def detect(self, batch: Batch) -> Tensor:
        """[N] even odds."""
        return torch.zeros(len(batch.tokens))
