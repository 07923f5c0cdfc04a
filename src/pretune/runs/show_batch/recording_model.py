"""A model that learns nothing and remembers what it was asked: so targets and weights are those of the real loss."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pretune.core.types import IGNORE, Batch, Loss, Targets
from pretune.data.ragged import Ints
from pretune.objectives.base import vocabulary_count


class Edges(NamedTuple):
    """Places of the tokens beside the span of every target [M], the place inside it, and what is to be said."""

    left: Tensor
    right: Tensor
    place: Tensor
    labels: Tensor


class _Undecided(nn.Module):
    """Two classes, none likelier."""

    def forward(self, pooled: Tensor) -> Tensor:
        return pooled.new_zeros(len(pooled), 2)


class Onlooker:
    """It stands where any shape of model may stand. Its states are the places of the tokens, and its loss is 0.

    As a generator it draws any ordinary token, by the numbers it is given.
    """

    def __init__(self, ordinary: Ints) -> None:
        self.ordinary = torch.from_numpy(ordinary)
        self.asked: list[Targets] = []  # what the vocabulary head was asked, one time after the other
        self.edges: Edges | None = None
        self.drawn: Tensor | None = None
        self.pair: nn.Module | None = _Undecided()

    def states(self, batch: Batch) -> Tensor:
        """[N, 1]"""
        return torch.arange(len(batch.tokens)).float()[:, None]

    def ways(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The same for both."""
        return self.states(batch), self.states(batch)

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """Nothing, of as many targets as there are."""
        assert batch.targets is not None
        self.asked.append(batch.targets)
        return Loss(sum=torch.zeros(()), count=vocabulary_count(batch))

    def pool(self, states: Tensor, batch: Batch) -> Tensor:
        """[C, 1]"""
        return states.new_zeros(batch.cells, 1)

    def span_loss(self, left: Tensor, right: Tensor, place: Tensor, labels: Tensor) -> Loss:
        """The states are places, so those of the edges are known."""
        self.edges = Edges(left[:, 0].long(), right[:, 0].long(), place, labels)
        return Loss(sum=torch.zeros(()), count=(labels != IGNORE).sum())

    def propose(self, batch: Batch, chance: Tensor) -> tuple[Loss, Tensor]:
        """A token for every blank, any as likely as any other."""
        self.drawn = self.ordinary[(chance * len(self.ordinary)).long()]
        return self.loss(self.states(batch), batch), self.drawn

    def detect(self, batch: Batch) -> Tensor:
        """[N] even odds."""
        return torch.zeros(len(batch.tokens))
