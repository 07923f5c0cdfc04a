"""Segment memory (Dai et al., 2019; Yang et al., 2019): states of the segments before, as more keys of a layer.

    memory = model.new_memory(384)
    for segment in segments:                    # batches of the same rows, each row going on with its text
        out = model(segment, memory=memory)     # reads what the memory holds, then adds this segment to it

Each layer keeps what it read: the content states of the last tokens. They lie before the row, at the distances that the
texts give them, everybody sees them, and no gradient goes into them. One text a row: a batch is `whole`.
"""

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.types import Batch


class SegmentMemory:
    """The last `length` states of every layer, for each row of the batches that are read in turn."""

    def __init__(self, depth: int, length: int) -> None:
        if length < 1:
            raise UsageError(f"a memory of {length} tokens; it needs at least 1")
        self.length = length
        self.layers: list[Tensor | None] = [None] * depth  # [rows, P, W]

    @property
    def tokens(self) -> int:
        """How many tokens of each row it holds: P."""
        first = self.layers[0]
        return 0 if first is None else first.shape[1]

    def check(self, batch: Batch) -> None:
        """Refuse a batch whose rows are not one text each, or not those that were read before."""
        if not batch.one_per_row:
            raise UsageError("a segment memory needs one sequence in each row, and all of the same length")
        first = self.layers[0]
        if first is not None and first.shape[0] != batch.rows:
            raise UsageError(f"the memory holds {first.shape[0]} texts, and the batch has {batch.rows} rows")

    def append(self, layer: int, states: Tensor, rows: int) -> None:
        """Add the states `[rows x R, W]` that a layer reads, and forget the oldest beyond `length`."""
        new, old = states.detach().view(rows, -1, states.shape[-1]), self.layers[layer]
        joined = new if old is None else torch.cat((old.to(new.dtype), new), dim=1)
        self.layers[layer] = joined[:, -self.length :]
