"""State of earlier tokens: static cache for generation (of keys and values, or of recurrent layers), learned prefix,
memory of previous segments (of attention or of recurrent layers); and the inputs of a decoding step, one new token per
sequence.

On a CPU the lengths of sequences can be read without waiting. There a step reads only the columns of the cache that
are in use, and writes sequences of equal length without indices. Elsewhere it is the same for all lengths, so that it
can be captured.

Legend: B sequences, H heads, K key-value heads, D head width, T capacity (prompt and new tokens), P keys before a row,
S source tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.positions import Rotary


@dataclass(slots=True, kw_only=True)
class LayerCache:
    """Keys and values of one attention layer, `[B + 1, K, T, D]`; the last row is a spare for padding."""

    store: tuple[Tensor, Tensor]
    slots: tuple[Tensor, Tensor] | None = None  # row and column of each prompt token

    @property
    def columns(self) -> int:
        """Tokens per sequence that fit."""
        return self.store[0].shape[2]

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


@dataclass(slots=True, kw_only=True)
class RecurrentState(LayerCache):
    """Output and cell of a recurrent layer after the last token: keys and values of one column, `[B + 1, 1, 1, …]`."""

    max_tokens: int

    @property
    def columns(self) -> int:
        """Tokens per sequence that were asked for; the state has the same size for any number."""
        return self.max_tokens

    def read(self) -> tuple[Tensor, Tensor]:
        """Return output and cell, `[B, …]` each."""
        return self.keys[:, 0, 0], self.values[:, 0, 0]

    def write(self, states: tuple[Tensor, Tensor]) -> None:
        """Write output and cell of every sequence `[B, …]`."""
        for store, new in zip(self.store, states, strict=True):
            store[:-1, 0, 0] = new.to(store.dtype)

    def write_final(self, states: tuple[Tensor, Tensor], tokens: Tensor) -> None:
        """Write the states `[S, …]` after a prompt; `tokens` `[S]` is the position of a token of each sequence."""
        assert self.slots is not None, "call KVCache.assign_slots before write_final"
        rows = self.slots[0].index_select(0, tokens)
        for store, new in zip(self.store, states, strict=True):
            store[rows, 0, 0] = new.to(store.dtype)


@dataclass(slots=True, kw_only=True)
class KVCache:
    """Cache of a decoder for B sequences: keys and values of both attentions, or states of recurrent layers."""

    lengths: Tensor  # [B] tokens in the cache
    layers: list[LayerCache]
    cross: list[LayerCache] = field(default_factory=list)
    source_lengths: Tensor | None = None  # [B]
    prefix_length: int = 0  # learned keys in the first columns of every layer

    @property
    def capacity(self) -> int:
        return self.layers[0].columns - self.prefix_length

    def assign_slots(self, batch: Batch) -> None:
        """Assign the tokens of a prompt batch to rows and columns: sequence s to row s, padding to the spare row."""
        for side, layers, prefix_length in ((batch, self.layers, self.prefix_length), (batch.source, self.cross, 0)):
            if side is not None and layers and not side.tokens.is_cuda:  # on a GPU this would synchronize
                spans, room = side.list_spans(), layers[0].columns - prefix_length
                longest = max(end - start for start, end in spans)
                if len(spans) > self.lengths.shape[0] or longest > room:
                    raise UsageError(
                        f"{len(spans)} sequences of up to {longest} tokens do not fit into the cache: it holds "
                        f"{self.lengths.shape[0]} of {room}"
                    )
        self.lengths = _assign_slots(batch, self.layers, self.lengths, self.prefix_length)
        if batch.source is not None and self.source_lengths is not None:
            self.source_lengths = _assign_slots(batch.source, self.cross, self.source_lengths)


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


COLUMN_ALIGNMENT = 64
"""On a CPU a step of sequences of several lengths reads a multiple of this many columns."""

Rotations = Mapping[Rotary | None, tuple[Tensor, Tensor] | None]
"""Rotation of the stack's positions (key None) and of each layer's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingStep:
    """Inputs of the layers with one window, rotary positions and number of key-value heads."""

    rows: Tensor  # [B] numbers of the sequences
    columns: Tensor  # [B] column of the new token
    column: int | None  # that of all sequences, if it is known and the same
    visible_columns: int | None  # that any sequence reads, as far as known; None: all
    mask: Tensor | None  # visible keys [B, 1, 1, T], or their bias [B, K, H / K, T]; None: all
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
        if min(lengths) == max(lengths):
            column = prefix_length + lengths[0]
            visible_columns = column + 1
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
        reads_all = window is None and bias_values is None and column == end - 1
        if bias_values is not None:
            grouped_bias = bias_values.view(len(bias_values), kv_heads, -1, end)
            mask = grouped_bias.masked_fill(~mask, float("-inf"))
        return DecodingStep(
            rows=rows,
            columns=columns,
            column=column,
            visible_columns=visible_columns,
            mask=None if reads_all else mask,
            rotation=rotations[rotary],
            source_mask=source_mask,
        )

    return build_step


class KVPrefix(Protocol):
    """A module without inputs that returns learned keys and values (prefix tuning; Li and Liang, 2021).

    They act like tokens: positions of the text start after them, distances are counted to their positions, and a window
    may exclude them. All sequences of a row share them: they are the first columns of its keys.
    """

    count: int

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return keys (after rotation) and values: `[P, K, D]` each."""


def prepend_prefix(prefix: KVPrefix, k: Tensor, v: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Prepend the prefix to keys and values `[rows R, K, D]`: `[rows (P + R), K, D]`."""
    if not prefix.count:
        return k, v
    keys, values = prefix()
    return _prepend_rows(keys, k, rows), _prepend_rows(values, v, rows)


def _prepend_rows(prefix: Tensor, text: Tensor, rows: int) -> Tensor:
    by_row = text.view(rows, -1, *text.shape[1:])
    return torch.cat((prefix.to(text.dtype).expand(rows, -1, -1, -1), by_row), dim=1).flatten(0, 1)


@torch.no_grad()
def fill_prefix_cache(prefix: KVPrefix, cache: LayerCache) -> LayerCache:
    """Return an empty cache with the prefix in its first columns."""
    stores = [
        torch.cat((first.transpose(0, 1).to(store.dtype).expand(store.shape[0], -1, -1, -1), store), dim=2)
        for first, store in zip(prefix(), cache.store, strict=True)
    ]
    return LayerCache(store=(stores[0], stores[1]))


class Memory(Protocol):
    """State that a model carries from a segment of a text to the next: tensors by name, one row per text, detached."""

    def check(self, batch: Batch) -> None:
        """Raise `UsageError` for a batch that it does not fit."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors, each with one row per text; empty before the first segment."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the tensors by those of a `state_dict`."""


def check_segment(batch: Batch, rows: int | None) -> None:
    """Raise `UsageError` for a batch with several texts per row, or another number of rows than a memory."""
    if not batch.one_per_row:
        raise UsageError("a segment memory needs one sequence per row, all of the same length")
    if rows is not None and rows != batch.rows:
        raise UsageError(f"the memory has {rows} rows, but the batch has {batch.rows}")


class SegmentMemory:
    """The last `length` states of every layer, for each row of consecutive batches (Dai et al., 2019).

        memory = model.new_memory(384)
        for segment in segments:  # batches of the same rows; each row continues its text
            out = model(segment, memory=memory)  # attends to the memory, then appends this segment

    Each layer stores its input: the content states of the last tokens. They are keys before the row, at their distances
    in the text, visible to all queries, without gradient. Every row has one text.
    """

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
        check_segment(batch, None if self.layers[0] is None else self.layers[0].shape[0])

    def state_dict(self) -> dict[str, Tensor]:
        return {str(i): layer for i, layer in enumerate(self.layers) if layer is not None}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.layers = [tensors.get(str(i)) for i in range(len(self.layers))]

    def append(self, layer: int, states: Tensor, rows: int) -> None:
        """Append the input states `[rows x R, W]` of a layer; drop the oldest beyond `length`."""
        new, old = states.detach().view(rows, -1, states.shape[-1]), self.layers[layer]
        memory = new if old is None else torch.cat((old.to(new.dtype), new), dim=1)
        self.layers[layer] = memory[:, -self.length :]


class RecurrentMemory:
    """Output and cell of every recurrent layer after the last token, for each row of consecutive batches."""

    def __init__(self, depth: int) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * depth  # [rows, P] and [rows, H]

    def check(self, batch: Batch) -> None:
        check_segment(batch, None if self.layers[0] is None else len(self.layers[0][0]))

    def write(self, layer: int, states: tuple[Tensor, Tensor]) -> None:
        """Replace the states of a layer by those after this segment."""
        self.layers[layer] = states[0].detach(), states[1].detach()

    def state_dict(self) -> dict[str, Tensor]:
        names = ("output", "cell")
        return {f"{i}.{name}": t for i, s in enumerate(self.layers) if s for name, t in zip(names, s, strict=True)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.layers = [
            (tensors[f"{i}.output"], tensors[f"{i}.cell"]) if tensors else None for i in range(len(self.layers))
        ]
