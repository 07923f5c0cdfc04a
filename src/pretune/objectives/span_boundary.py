"""Span boundary objective: predict each token of a span from the two tokens around it (Joshi et al., 2020).

`Batch.blanks` numbers the spans. All tokens of a span are targets, and target slots are in batch order, so spans are
found among the slots on the device, without synchronisation. Legend: M target slots, N tokens.
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
    """Settings of the span boundary loss."""

    weight: float = 1.0


class SpanEdges(NamedTuple):
    """Positions of the tokens left and right of each target's span, and the target's position in the span [M]."""

    left: Tensor
    right: Tensor
    place: Tensor


def find_span_edges(batch: Batch) -> SpanEdges:
    """Find the edges of the targets' spans; at the start or end of a text the span's own token is the edge."""
    if batch.targets is None or batch.blanks is None:
        raise UsageError("the boundary loss needs targets in spans; use span_masked")
    index = batch.targets.index
    cell, blank = batch.sequence[index], batch.blanks[index]
    opens = torch.ones_like(index, dtype=torch.bool)
    # Unused slots point to token 0: each becomes a span whose loss is ignored.
    opens[1:] = (cell[1:] != cell[:-1]) | (blank[1:] != blank[:-1]) | (index[1:] != index[:-1] + 1)
    span = opens.long().cumsum(0) - 1
    first = torch.full_like(index, batch.tokens.shape[0]).scatter_reduce(0, span, index, "amin")[span]
    last = torch.zeros_like(index).scatter_reduce(0, span, index, "amax")[span]
    owner = cell.clamp(min=0)  # of padding, if no sequence is at token 0
    low, high = batch.offsets[owner].long(), batch.offsets[owner + 1].long() - 1
    return SpanEdges(torch.maximum(first - 1, low), torch.minimum(last + 1, torch.maximum(high, low)), index - first)


def boundary_loss(model: PretrainingModel, states: Tensor, batch: Batch) -> Loss:
    """Compute the summed loss of the span head at every target."""
    left, right, place = find_span_edges(batch)
    assert batch.targets is not None
    return model.compute_span_loss(
        states.index_select(0, left), states.index_select(0, right), place, batch.targets.labels
    )
