"""Segment memory (Dai et al., 2019; Yang et al., 2019): states of previous segments, as additional keys.

    memory = model.new_memory(384)
    for segment in segments:  # batches of the same rows; each row continues its text
        out = model(segment, memory=memory)  # attends to the memory, then appends this segment

Each layer stores its input: the content states of the last tokens. They are keys before the row, at their distances in
the text, visible to all queries, without gradient. Every row has one text.
"""

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.types import Batch


class SegmentMemory:
    """The last `length` states of every layer, for each row of consecutive batches."""

    def __init__(self, depth: int, length: int) -> None:
        if length < 1:
            raise UsageError(f"the length of a segment memory must be at least 1, got {length}")
        self.length = length
        self.layers: list[Tensor | None] = [None] * depth  # [rows, P, W]

    @property
    def tokens(self) -> int:
        """Tokens per row in the memory: P."""
        first = self.layers[0]
        return 0 if first is None else first.shape[1]

    def check(self, batch: Batch) -> None:
        """Raise `UsageError` for a batch with several texts per row, or another number of rows."""
        if not batch.one_per_row:
            raise UsageError("a segment memory needs one sequence per row, all of the same length")
        first = self.layers[0]
        if first is not None and first.shape[0] != batch.rows:
            raise UsageError(f"the memory has {first.shape[0]} rows, but the batch has {batch.rows}")

    def append(self, layer: int, states: Tensor, rows: int) -> None:
        """Append the input states `[rows x R, W]` of a layer; drop the oldest beyond `length`."""
        new, old = states.detach().view(rows, -1, states.shape[-1]), self.layers[layer]
        memory = new if old is None else torch.cat((old.to(new.dtype), new), dim=1)
        self.layers[layer] = memory[:, -self.length :]
