"""Static key-value cache: shapes are constant during generation, so that a step compiles once.

Legend: B sequences, K key-value heads, D head width, T capacity (prompt and new tokens).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.types import Batch


@dataclass(slots=True, kw_only=True)
class LayerCache:
    """Keys and values of one attention layer, `[B + 1, K, T, D]`; the last row is a spare for padding."""

    store: tuple[Tensor, Tensor]
    slots: tuple[Tensor, Tensor] | None = None  # row and column of each prompt token

    @property
    def keys(self) -> Tensor:
        return self.store[0][:-1]

    @property
    def values(self) -> Tensor:
        return self.store[1][:-1]

    def fill(self, k: Tensor, v: Tensor) -> None:
        """Write the keys and values `[N, K, D]` of a ragged batch."""
        assert self.slots is not None, "call KVCache.assign_slots before fill"
        row, column = self.slots
        for store, new in zip(self.store, (k, v), strict=True):
            store[row, :, column] = new.to(store.dtype)

    def put(self, k: Tensor, v: Tensor, columns: Tensor) -> None:
        """Write the keys and values `[B, K, D]` of one token per sequence."""
        row = torch.arange(k.shape[0], device=k.device)
        for store, new in zip(self.store, (k, v), strict=True):
            store[row, :, columns] = new.to(store.dtype)


@dataclass(slots=True, kw_only=True)
class KVCache:
    """Key-value cache of a decoder for B sequences: self-attention and cross-attention of every layer."""

    lengths: Tensor  # [B] tokens in the cache
    layers: list[LayerCache]
    cross: list[LayerCache] = field(default_factory=list)
    source_lengths: Tensor | None = None  # [B]
    prefix_length: int = 0  # learned keys in the first columns of every layer

    @property
    def capacity(self) -> int:
        return self.layers[0].keys.shape[2] - self.prefix_length

    def assign_slots(self, batch: Batch) -> None:
        """Assign the tokens of a prompt batch to rows and columns: sequence s to row s, padding to the spare row."""
        for side, layers, prefix_length in ((batch, self.layers, self.prefix_length), (batch.source, self.cross, 0)):
            if side is not None and layers and not side.tokens.is_cuda:  # on a GPU this would synchronize
                spans, room = side.list_spans(), layers[0].keys.shape[2] - prefix_length
                longest = max(end - start for start, end in spans)
                if len(spans) > self.lengths.shape[0] or longest > room:
                    raise UsageError(
                        f"{len(spans)} sequences of up to {longest} tokens do not fit into the cache: it holds "
                        f"{self.lengths.shape[0]} of {room}"
                    )
        self.lengths = _assign_slots(batch, self.layers, self.lengths, self.prefix_length)
        if batch.source is not None and self.source_lengths is not None:
            self.source_lengths = _assign_slots(batch.source, self.cross, self.source_lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingStep:
    """Inputs of a decoding step that all layers share."""

    columns: Tensor  # [B] column of the new token
    distance: Tensor  # [B, T] cached position minus new position
    rotation: tuple[Tensor, Tensor] | None = None
    bias: Tensor | None = None  # [B, H, T]
    source_mask: Tensor | None = None  # [B, 1, 1, S]; None without a source

    def build_mask(self, window: int | None) -> Tensor:
        """Return the mask `[B, 1, 1, T]`: past tokens and the token itself, within the window."""
        mask = self.distance <= 0
        if window is not None:
            mask = mask & (self.distance > -window)
        return mask[:, None, None]


def _assign_slots(batch: Batch, layers: list[LayerCache], like: Tensor, prefix_length: int = 0) -> Tensor:
    cells = torch.arange(batch.cells, device=batch.offsets.device)
    first = batch.offsets[:-1].clamp(max=batch.tokens.shape[0] - 1)
    lengths = batch.offsets.diff()
    real = (lengths > 0) & (batch.sequence[first] == cells)
    row = torch.where(real, real.cumsum(0) - 1, like.shape[0])  # spare row for padding
    slots = torch.where(batch.sequence >= 0, row[batch.sequence.clamp(min=0)], like.shape[0])
    column = torch.where(batch.sequence >= 0, batch.positions, 0) + prefix_length
    for layer in layers:
        layer.slots = (slots, column)
    out = torch.zeros(like.shape[0] + 1, dtype=like.dtype, device=like.device)
    out[row] = lengths.to(like.dtype)
    return out[:-1]
