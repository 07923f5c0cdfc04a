"""Inputs of a decoding step that layers of a kind share: positions, masks and rotations of one new token per sequence.

On a CPU the lengths of sequences can be read without waiting. There a step reads only the columns of the cache that
are in use, and writes sequences of equal length without indices. Elsewhere it is the same for all lengths, so that it
can be captured.

Legend: B sequences, H heads, K key-value heads, D head width, T columns of the cache, S source tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pretune.nn.cache import KVCache, LayerCache
from pretune.nn.positions import Rotary

COLUMN_ALIGNMENT = 64
"""On a CPU a step reads a multiple of this many columns."""

Rotations = Mapping[Rotary | None, tuple[Tensor, Tensor] | None]
"""Rotation of the stack's positions (key None) and of each layer's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingStep:
    """Inputs of the layers with one window, rotary positions and number of key-value heads."""

    rows: Tensor  # [B] numbers of the sequences
    columns: Tensor  # [B] column of the new token
    column: int | None  # that of all sequences, if it is known and the same
    visible_columns: int | None  # that any sequence reads, as far as known; None: all
    mask: Tensor  # visible keys [B, 1, 1, T], or their bias [B, K, H / K, T]
    rotation: tuple[Tensor, Tensor] | None
    source_mask: Tensor | None  # [B, 1, 1, S]; None without a source

    def append(self, cache: LayerCache, k: Tensor, v: Tensor) -> None:
        """Write the keys and values `[B, K, D]` of the new token."""
        for store, new in zip(cache.store, (k, v), strict=True):
            if self.column is None:
                store[self.rows, :, self.columns] = new.to(store.dtype)
            else:
                store[:-1, :, self.column] = new

    def read(self, cache: LayerCache) -> tuple[Tensor, Tensor]:
        """Return keys and values of the sequences, `[B, K, T, D]` each."""
        if self.visible_columns is None or self.visible_columns >= cache.columns:
            return cache.keys, cache.values
        return cache.keys[:, :, : self.visible_columns], cache.values[:, :, : self.visible_columns]


def prepare_steps(
    cache: KVCache, rotations: Rotations, bias: Callable[[Tensor], Tensor] | None
) -> Callable[[int | None, Rotary | None, int], DecodingStep]:
    """Return a function that builds the step of layers with a window, rotary positions and key-value heads.

    `bias` maps distances `[B, T]` to the bias of attention `[H, B, T]`.
    """
    prefix_length, device, capacity = cache.prefix_length, cache.lengths.device, cache.layers[0].columns
    visible_columns, column = None, None
    if device.type == "cpu" and not torch.compiler.is_compiling():
        lengths = cache.lengths.tolist()
        visible_columns = -(-(prefix_length + max(lengths) + 1) // COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
        column = prefix_length + lengths[0] if min(lengths) == max(lengths) else None
    end = capacity if visible_columns is None else min(visible_columns, capacity)
    distance = torch.arange(-prefix_length, end - prefix_length, device=device) - cache.lengths[:, None]
    past, bias_values = distance <= 0, None if bias is None else bias(distance).transpose(0, 1)
    source_mask = None
    if cache.source_lengths is not None:
        source_columns = torch.arange(cache.cross[0].columns, device=device)
        source_mask = (source_columns < cache.source_lengths[:, None])[:, None, None]
    rows, columns = torch.arange(cache.lengths.shape[0], device=device), cache.lengths + prefix_length

    def build_step(window: int | None, rotary: Rotary | None, kv_heads: int) -> DecodingStep:
        mask = (past if window is None else past & (distance > -window))[:, None, None]
        if bias_values is not None:
            grouped_bias = bias_values.view(len(bias_values), kv_heads, -1, end)
            mask = grouped_bias.masked_fill(~mask, float("-inf"))
        return DecodingStep(
            rows=rows,
            columns=columns,
            column=column,
            visible_columns=visible_columns,
            mask=mask,
            rotation=rotations[rotary],
            source_mask=source_mask,
        )

    return build_step
