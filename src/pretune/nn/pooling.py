"""How a head reads a whole sequence: which states stand for it, and through what they go.

Legend: N tokens, C cells, W width. Every cell of a batch has a row in what is given back; those of filler and of spare
cells mean nothing. Shapes are static and nothing waits for the device.
"""

from typing import Literal

import torch
from torch import Tensor

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.feedforward import ActivationName

PoolingMode = Literal["first", "last", "mean", "max", "mean_sqrt", "weighted"]
"""The first state, the last, the mean, the largest; the sum over the root of the number; a mean that weighs the n-th
state n times."""


@spec(kind="pooling")
class PoolingConfig:
    """The state of one token, or the mean or maximum of all, through a dense layer or straight to the classes.

    `layer`: `own` is a new dense layer, with dropout before it; `pooler` the one that the model was pre-trained with.
    """

    mode: PoolingMode = "first"
    layer: Literal["own", "pooler"] | None = None
    activation: ActivationName = "tanh"  # after the layer
    bias: bool = True  # of the classes
    concat: tuple[PoolingMode, ...] = ()  # poolings that are laid beside the first, as sentence-transformers does

    def __post_init__(self) -> None:
        if self.concat and self.layer == "pooler":
            raise UsageError("a pooler reads one state; leave out 'concat', or set layer to 'own'")

    @property
    def modes(self) -> tuple[PoolingMode, ...]:
        """All poolings."""
        return (self.mode, *self.concat)


def pool_states(states: Tensor, batch: Batch, mode: PoolingMode) -> Tensor:
    """States `[N, W]` to one vector for each cell `[C, W]`; a mean is of fp32 at least.

    NOTE: means of texts differ from one another by far less than states do, often by less than half precision can tell.
    """
    if mode == "mean":
        return _compute_means(states, batch)
    sizes = batch.offsets[1:] - batch.offsets[:-1]
    if mode == "max":
        least = float(torch.finfo(states.dtype).min)
        largest = torch.segment_reduce(states, "max", offsets=batch.offsets.long(), axis=0, initial=least)
        return largest.where(
            sizes[:, None] > 0, 0.0
        )  # NOTE: an empty cell's logits must be finite, or gradients are not
    if mode in ("mean_sqrt", "weighted"):
        counts = sizes.clamp(min=1)[:, None].to(states.dtype)
        if mode == "mean_sqrt":
            return _compute_means(states, batch) * counts.sqrt()
        return _compute_means(states * (batch.positions + 1)[:, None].to(states.dtype), batch) * 2 / (counts + 1)
    edge = batch.offsets[:-1] if mode == "first" else batch.offsets[1:] - 1
    return states.index_select(0, edge.long().clamp(0, states.shape[0] - 1))


def _compute_means(states: Tensor, batch: Batch) -> Tensor:
    owner = torch.where(batch.sequence < 0, batch.cells, batch.sequence)  # filler goes to a cell beyond the last
    states = states.to(torch.promote_types(states.dtype, torch.float32))
    sums = states.new_zeros(batch.cells + 1, states.shape[1]).index_add(0, owner, states)
    sizes = (batch.offsets[1:] - batch.offsets[:-1]).clamp(min=1)
    return sums[:-1] / sizes[:, None]
