"""The span boundary objective: predict each token of a span from the two tokens around it (Joshi et al., 2020).

Spans are known by `Batch.blanks`. All tokens of a span are targets, and target slots are in the order of the batch, so
spans are found among the slots, on the device, and without waiting for it. M target slots, N tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss
from pretune.objectives.base import PretrainingModel


@spec
class Boundary:
    """Also predict each token of a span from its edges."""

    weight: float = 1.0


class SpanEdges(NamedTuple):
    """Of each target slot [M]: the places of the tokens left and right of its span, and its own place in the span."""

    left: Tensor
    right: Tensor
    place: Tensor


def find_span_edges(batch: Batch) -> SpanEdges:
    """Where the spans of a batch's targets end. Where a text starts or ends with a span, that token is its edge."""
    if batch.targets is None or batch.blanks is None:
        raise UsageError("a boundary loss needs a batch whose targets are spans; take an objective that masks spans")
    index = batch.targets.index
    cell, blank = batch.sequence[index], batch.blanks[index]
    opens = torch.ones_like(index, dtype=torch.bool)
    # Spare slots all point at token 0: each is a span of its own, whose loss nobody counts.
    opens[1:] = (cell[1:] != cell[:-1]) | (blank[1:] != blank[:-1]) | (index[1:] != index[:-1] + 1)
    span = opens.long().cumsum(0) - 1
    first = torch.full_like(index, batch.tokens.shape[0]).scatter_reduce(0, span, index, "amin")[span]
    last = torch.zeros_like(index).scatter_reduce(0, span, index, "amax")[span]
    owner = cell.clamp(min=0)  # the filler's, should there be no sequence at token 0
    low, high = batch.offsets[owner].long(), batch.offsets[owner + 1].long() - 1
    return SpanEdges(torch.maximum(first - 1, low), torch.minimum(last + 1, torch.maximum(high, low)), index - first)


def boundary_loss(model: PretrainingModel, states: Tensor, batch: Batch) -> Loss:
    """The summed loss of the span head at every target."""
    left, right, place = find_span_edges(batch)
    assert batch.targets is not None
    return model.compute_span_loss(
        states.index_select(0, left), states.index_select(0, right), place, batch.targets.labels
    )
