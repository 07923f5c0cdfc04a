"""Pooling of a sequence's states into one vector.

Legend: N tokens, C cells, W width. The result has a row for every cell of the batch; rows of padding and spare cells
are undefined. Shapes are static, and nothing synchronizes with the device.
"""

from typing import Literal

import torch
from torch import Tensor

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.feedforward import ActivationName

PoolingMode = Literal["first", "last", "mean", "max", "mean_sqrt", "weighted"]
"""First or last state, mean, maximum, sum / sqrt(length), or mean weighted by position (n-th state n times)."""


@spec(kind="pooling")
class PoolingConfig:
    """Pooling of a task head: mode, and an optional dense layer before the classifier.

    `layer`: `own` is a new dense layer with dropout before it, `pooler` the pre-trained one, None no layer.
    """

    mode: PoolingMode = "first"
    layer: Literal["own", "pooler"] | None = None
    activation: ActivationName = "tanh"  # after the layer
    bias: bool = True  # of the classifier
    concat: tuple[PoolingMode, ...] = ()  # further modes, concatenated as in sentence-transformers

    def __post_init__(self) -> None:
        if self.concat and self.layer == "pooler":
            raise UsageError("a pooler takes one state; remove 'concat', or set layer to 'own'")

    @property
    def modes(self) -> tuple[PoolingMode, ...]:
        """All pooling modes."""
        return (self.mode, *self.concat)


def pool_states(states: Tensor, batch: Batch, mode: PoolingMode) -> Tensor:
    """Pool states `[N, W]` into one vector per cell `[C, W]`; means are at least fp32.

    NOTE: means of texts differ far less than states do, often by less than half precision can represent.
    """
    if mode == "mean":
        return _compute_means(states, batch)
    sizes = batch.offsets[1:] - batch.offsets[:-1]
    if mode == "max":
        lowest = float(torch.finfo(states.dtype).min)
        largest = torch.segment_reduce(states, "max", offsets=batch.offsets.long(), axis=0, initial=lowest)
        # NOTE: logits of an empty cell must be finite, or gradients are not.
        return largest.where(sizes[:, None] > 0, 0.0)
    if mode in ("mean_sqrt", "weighted"):
        counts = sizes.clamp(min=1)[:, None].to(states.dtype)
        if mode == "mean_sqrt":
            return _compute_means(states, batch) * counts.sqrt()
        return _compute_means(states * (batch.positions + 1)[:, None].to(states.dtype), batch) * 2 / (counts + 1)
    edge = batch.offsets[:-1] if mode == "first" else batch.offsets[1:] - 1
    return states.index_select(0, edge.long().clamp(0, states.shape[0] - 1))


def _compute_means(states: Tensor, batch: Batch) -> Tensor:
    owner = torch.where(batch.sequence < 0, batch.cells, batch.sequence)  # padding goes to an extra cell
    states = states.to(torch.promote_types(states.dtype, torch.float32))
    sums = states.new_zeros(batch.cells + 1, states.shape[1]).index_add(0, owner, states)
    sizes = (batch.offsets[1:] - batch.offsets[:-1]).clamp(min=1)
    return sums[:-1] / sizes[:, None]
