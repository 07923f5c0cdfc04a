"""A stack of blocks over a ragged batch, with its input embedding, its positions and its final norm."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.activations import Dropout
from pretune.nn.attention_mask import (
    AttentionContext,
    Backend,
    BackendRequirements,
    MaskSpec,
    build_context,
    choose_backend,
    find_unsupported,
)
from pretune.nn.block import Block, TransformerBlock
from pretune.nn.cache import DecodingStep, KVCache, LayerCache
from pretune.nn.embeddings import Embed
from pretune.nn.norm import Norm
from pretune.nn.positions import Position
from pretune.nn.prefix import fill_prefix_cache


@spec
class Stack:
    """`depth` layers: the tuple `blocks` is cycled over them. With `share` only so many have weights of their own."""

    depth: int
    blocks: tuple[Block, ...]
    embed: Embed = Embed()
    position: Position | None = None
    causal: bool = False
    share: int | None = None  # None: every layer; layer i then uses the weights of layer i * share // depth
    norm: Norm | None = None  # after the last layer
    dropout: float = 0.0  # after that norm

    def __post_init__(self) -> None:
        if self.depth < 1 or not self.blocks:
            raise UsageError(f"depth {self.depth} must be at least 1, with at least one block")
        if self.share is not None and not 1 <= self.share <= self.depth:
            raise UsageError(f"share {self.share} must lie between 1 and depth {self.depth}")

    @property
    def layers(self) -> list[Block]:
        """The block of every layer that has weights of its own."""
        return [self.blocks[i % len(self.blocks)] for i in range(self.share or self.depth)]

    @property
    def layer_indices(self) -> list[int]:
        """Which of those each of the `depth` layers uses."""
        return (
            list(range(self.depth)) if self.share is None else [i * self.share // self.depth for i in range(self.depth)]
        )

    def build(self, *, width: int, shared: "TransformerStack | None" = None) -> "TransformerStack":
        return TransformerStack(self, width, shared)

    def position_params(self, *, width: int) -> int:
        heads = self.blocks[0].attention.heads
        return self.position.params(width=self.embed.get_inner_width(width=width), heads=heads) if self.position else 0

    def params(self, *, width: int) -> int:
        """All weights but the token table."""
        count = self.embed.params(width=width) + self.position_params(width=width)
        count += sum(block.params(width=width) for block in self.layers)
        return count + (self.norm.params(width=width) if self.norm else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOutput:
    """The states after the final norm, and what else was asked for."""

    states: Tensor
    hidden: tuple[Tensor, ...] | None = None
    attention: tuple[Tensor, ...] | None = None  # per layer [rows, H, R, R]
    cross: tuple[Tensor, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    """What a caller wants besides the states, and which backend is forced, if any."""

    hidden: bool = False
    attention: bool = False
    backend: Backend | None = None


class TransformerStack(nn.Module):
    """Layers are named by their number: `encoder.3.attention.q.weight`."""

    def __init__(self, spec: Stack, width: int, shared: "TransformerStack | None" = None) -> None:
        super().__init__()
        self.spec = spec
        first = spec.blocks[0].attention
        heads, _, head_width = first.resolve_shape(width=width)
        self.embed = spec.embed.build(width=width)
        inner = spec.embed.get_inner_width(width=width)
        self.position = spec.position.build(width=inner, heads=heads, head_width=head_width) if spec.position else None
        for i, block in enumerate(spec.layers):
            self.add_module(str(i), block.build(width=width, shared=shared[i] if shared else None))
        self.norm = spec.norm.build(width=width) if spec.norm else None
        self.residual_dtype: torch.dtype | None = None  # of the residual stream; None: as the embedding gives it
        self.activation_checkpointing = False  # activations of a layer in the backward pass, instead of keeping them
        self.dropout = Dropout(spec.dropout)

    def __getitem__(self, i: int) -> TransformerBlock:
        return self._modules[str(i)]  # type: ignore[return-value]

    def __iter__(self) -> Iterator[TransformerBlock]:
        """Every layer in the order it is applied."""
        return (self[i] for i in self.spec.layer_indices)

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        source: Tensor | None = None,
        *,
        flags: OutputFlags = OutputFlags(),  # noqa: B008 (a frozen value)
        cache: KVCache | None = None,
    ) -> StackOutput:
        """Token rows `[N, table]` of a batch to states; `source` are the encoder's states, in `batch.source`."""
        x = self.embed_inputs(x, self.shift_positions(batch.positions), batch.segments)
        scopes = self.build_contexts(batch, x.dtype, flags)
        across = None if source is None else self.build_cross_context(batch, x.dtype, flags)
        hidden, attention, cross = [x], [], []
        for i, layer in enumerate(self):
            caches = None if cache is None else (cache.layers[i], cache.cross[i] if cache.cross else None)
            inputs = (x, scopes[layer.attention.window], across, source, caches)
            if self.activation_checkpointing and torch.is_grad_enabled():
                x, weights, seen = checkpoint(layer, *inputs, use_reentrant=False)
            else:
                x, weights, seen = layer(*inputs)
            if flags.hidden:
                hidden.append(x)
            if flags.attention:
                attention.append(weights)
                cross.append(seen)
        x = self.apply_final_norm(x)
        return StackOutput(
            states=x,
            hidden=(*hidden[:-1], x) if flags.hidden else None,
            attention=tuple(attention) if flags.attention else None,
            cross=tuple(cross) if flags.attention and source is not None else None,
        )

    def step(self, x: Tensor, cache: KVCache) -> Tensor:
        """One new token per sequence: its states `[B, W]`. The cache is one longer afterwards."""
        positions, ahead = self.shift_positions(cache.lengths), cache.prefix_length
        x = self.embed_inputs(x, positions, None)
        distance = torch.arange(-ahead, cache.capacity, device=x.device) - cache.lengths[:, None]
        bias = self._get_bias(self.position) if self._has_position("bias") else None
        source = None
        if cache.source_lengths is not None:
            columns = torch.arange(cache.cross[0].keys.shape[2], device=x.device)
            source = (columns < cache.source_lengths[:, None])[:, None, None]
        step = DecodingStep(
            columns=cache.lengths + ahead,
            distance=distance,
            rotation=self.position(positions) if self.position and self._has_position("rotation") else None,
            bias=None if bias is None else bias(distance).transpose(0, 1),
            source_mask=source,
        )
        for i, layer in enumerate(self):
            x = layer.step(x, step, (cache.layers[i], cache.cross[i] if cache.cross else None))
        cache.lengths = cache.lengths + 1
        return self.apply_final_norm(x)

    @property
    def prefix_length(self) -> int:
        """How many learned keys stand before each sequence, in every layer."""
        prefix = self[0].attention.prefix
        return 0 if prefix is None else prefix.count

    def shift_positions(self, positions: Tensor) -> Tensor:
        """Positions of tokens as the model counts them: what is learned stands before the text."""
        return positions + self.prefix_length if self.prefix_length else positions

    def embed_inputs(self, x: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        added = self.position(positions) if self.position and self._has_position("input") else None
        out: Tensor = self.embed(x, added, segments)
        return out if self.residual_dtype is None else out.to(self.residual_dtype)

    def apply_final_norm(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(x if self.norm is None else self.norm(x))
        return out

    def build_contexts(
        self, batch: Batch, dtype: torch.dtype, flags: OutputFlags
    ) -> dict[int | None, AttentionContext]:
        """One scope per window in the pattern."""
        placed = self.shift_positions(batch.positions)
        rotation = self.position(placed) if self.position and self._has_position("rotation") else None
        bias = self._get_bias(self.position) if self._has_position("bias") else None
        made = {}
        for window in dict.fromkeys(block.attention.window for block in self.spec.blocks):
            alike = [block.attention for block in self.spec.blocks if block.attention.window == window]
            view = MaskSpec(causal=self.spec.causal, window=window, bias=bias, prefix_length=self.prefix_length)
            found = self._build_context(batch, batch, view, max(attention.dropout for attention in alike), dtype, flags)
            made[window] = replace(found, rotation=rotation)
        return made

    def build_cross_context(self, batch: Batch, dtype: torch.dtype, flags: OutputFlags) -> AttentionContext:
        """The scope from the decoder's side to the source."""
        if batch.source is None:
            raise UsageError("an encoder-decoder needs a batch with source and target")
        dropout = max(block.cross.dropout for block in self.spec.blocks if block.cross)
        return self._build_context(batch, batch.source, MaskSpec(causal=False), dropout, dtype, flags)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the layers, the way in and the way out; the loop over layers stays in Python."""
        for layer in self:
            layer.compile(*args, **options)
        self.embed_inputs = torch.compile(self.embed_inputs, *args, **options)  # type: ignore[method-assign]
        self.apply_final_norm = torch.compile(self.apply_final_norm, *args, **options)  # type: ignore[method-assign]

    def new_caches(self, sequences: int, capacity: int, *, cross: bool, like: Tensor) -> list[LayerCache]:
        """Empty caches for every layer, of the self-attention or of the attention to the source."""
        caches = []
        for layer in self:
            attention = layer.cross if cross else layer.attention
            assert attention is not None
            shape = (sequences + 1, attention.kv_heads, capacity, attention.head)
            made = LayerCache(store=(like.new_zeros(shape), like.new_zeros(shape)))
            caches.append(made if attention.prefix is None else fill_prefix_cache(attention.prefix, made))
        return caches

    def _build_context(
        self, queries: Batch, keys: Batch, mask_spec: MaskSpec, dropout: float, dtype: torch.dtype, flags: OutputFlags
    ) -> AttentionContext:
        device = queries.tokens.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        facts: BackendRequirements = {
            "device": device,
            "half": dtype in (torch.float16, torch.bfloat16),
            "whole": queries.one_per_row and keys.one_per_row,
            "length": max(queries.length, keys.length),
            "bias": mask_spec.bias is not None,
            "prefix": queries.prefix is not None and mask_spec.causal,
            "view": queries.view is not None and queries is keys,
            "window": mask_spec.window,
            "dropout": dropout if self.training else 0.0,
            "weights": flags.attention,
            "ahead": mask_spec.prefix_length,
            "head": self[0].attention.head,
        }
        backend: Backend = choose_backend(**facts) if flags.backend is None or flags.attention else flags.backend
        missing = find_unsupported(backend, **facts)
        if missing:
            raise UsageError(f"attention_backend '{backend}' cannot do {missing}; leave it open, or use 'rows'")
        return build_context(queries, keys, mask_spec, backend, dtype)

    def _has_position(self, mechanism: str) -> bool:
        return self.spec.position is not None and self.spec.position.mechanism == mechanism

    @staticmethod
    def _get_bias(module: nn.Module | None) -> Callable[[Tensor], Tensor]:
        assert module is not None
        return module
