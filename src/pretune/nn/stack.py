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
from pretune.nn.attention_mask import Backend, Facts, Scope, View, lacks, pick, scope
from pretune.nn.block import Block, TransformerBlock
from pretune.nn.cache import Cache, LayerCache, Step
from pretune.nn.embeddings import Embed
from pretune.nn.norm import Norm
from pretune.nn.positions import Position
from pretune.nn.prefix import remember


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
    def layer_of(self) -> list[int]:
        """Which of those each of the `depth` layers uses."""
        return (
            list(range(self.depth)) if self.share is None else [i * self.share // self.depth for i in range(self.depth)]
        )

    def build(self, *, width: int, shared: "TransformerStack | None" = None) -> "TransformerStack":
        return TransformerStack(self, width, shared)

    def position_params(self, *, width: int) -> int:
        heads = self.blocks[0].attention.heads
        return self.position.params(width=self.embed.inner(width=width), heads=heads) if self.position else 0

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
class Ask:
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
        heads, _, head_width = first.shape(width=width)
        self.embed = spec.embed.build(width=width)
        inner = spec.embed.inner(width=width)
        self.position = spec.position.build(width=inner, heads=heads, head_width=head_width) if spec.position else None
        for i, block in enumerate(spec.layers):
            self.add_module(str(i), block.build(width=width, shared=shared[i] if shared else None))
        self.norm = spec.norm.build(width=width) if spec.norm else None
        self.stream: torch.dtype | None = None  # of the residual stream; None: as the embedding gives it
        self.recompute = False  # activations of a layer in the backward pass, instead of keeping them
        self.dropout = Dropout(spec.dropout)

    def __getitem__(self, i: int) -> TransformerBlock:
        return self._modules[str(i)]  # type: ignore[return-value]

    def __iter__(self) -> Iterator[TransformerBlock]:
        """Every layer in the order it is applied."""
        return (self[i] for i in self.spec.layer_of)

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        source: Tensor | None = None,
        *,
        ask: Ask = Ask(),  # noqa: B008 (a frozen value)
        cache: Cache | None = None,
    ) -> StackOutput:
        """Token rows `[N, table]` of a batch to states; `source` are the encoder's states, in `batch.source`."""
        x = self.enter(x, self.placed(batch.positions), batch.segments)
        scopes = self.scopes(batch, x.dtype, ask)
        across = None if source is None else self.across(batch, x.dtype, ask)
        hidden, attention, cross = [x], [], []
        for i, layer in enumerate(self):
            caches = None if cache is None else (cache.layers[i], cache.cross[i] if cache.cross else None)
            inputs = (x, scopes[layer.attention.window], across, source, caches)
            if self.recompute and torch.is_grad_enabled():
                x, weights, seen = checkpoint(layer, *inputs, use_reentrant=False)
            else:
                x, weights, seen = layer(*inputs)
            if ask.hidden:
                hidden.append(x)
            if ask.attention:
                attention.append(weights)
                cross.append(seen)
        x = self.leave(x)
        return StackOutput(
            states=x,
            hidden=(*hidden[:-1], x) if ask.hidden else None,
            attention=tuple(attention) if ask.attention else None,
            cross=tuple(cross) if ask.attention and source is not None else None,
        )

    def step(self, x: Tensor, cache: Cache) -> Tensor:
        """One new token per sequence: its states `[B, W]`. The cache is one longer afterwards."""
        positions, ahead = self.placed(cache.lengths), cache.ahead
        x = self.enter(x, positions, None)
        distance = torch.arange(-ahead, cache.capacity, device=x.device) - cache.lengths[:, None]
        bias = self._bias(self.position) if self._acts("bias") else None
        source = None
        if cache.source_lengths is not None:
            columns = torch.arange(cache.cross[0].keys.shape[2], device=x.device)
            source = (columns < cache.source_lengths[:, None])[:, None, None]
        step = Step(
            columns=cache.lengths + ahead,
            distance=distance,
            rotation=self.position(positions) if self.position and self._acts("rotation") else None,
            bias=None if bias is None else bias(distance).transpose(0, 1),
            source_mask=source,
        )
        for i, layer in enumerate(self):
            x = layer.step(x, step, (cache.layers[i], cache.cross[i] if cache.cross else None))
        cache.lengths = cache.lengths + 1
        return self.leave(x)

    @property
    def ahead(self) -> int:
        """How many learned keys stand before each sequence, in every layer."""
        prefix = self[0].attention.prefix
        return 0 if prefix is None else prefix.count

    def placed(self, positions: Tensor) -> Tensor:
        """Positions of tokens as the model counts them: what is learned stands before the text."""
        return positions + self.ahead if self.ahead else positions

    def enter(self, x: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        added = self.position(positions) if self.position and self._acts("input") else None
        out: Tensor = self.embed(x, added, segments)
        return out if self.stream is None else out.to(self.stream)

    def leave(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(x if self.norm is None else self.norm(x))
        return out

    def scopes(self, batch: Batch, dtype: torch.dtype, ask: Ask) -> dict[int | None, Scope]:
        """One scope per window in the pattern."""
        placed = self.placed(batch.positions)
        rotation = self.position(placed) if self.position and self._acts("rotation") else None
        bias = self._bias(self.position) if self._acts("bias") else None
        made = {}
        for window in dict.fromkeys(block.attention.window for block in self.spec.blocks):
            alike = [block.attention for block in self.spec.blocks if block.attention.window == window]
            view = View(causal=self.spec.causal, window=window, bias=bias, ahead=self.ahead)
            found = self._scope(batch, batch, view, max(attention.dropout for attention in alike), dtype, ask)
            made[window] = replace(found, rotation=rotation)
        return made

    def across(self, batch: Batch, dtype: torch.dtype, ask: Ask) -> Scope:
        """The scope from the decoder's side to the source."""
        if batch.source is None:
            raise UsageError("an encoder-decoder needs a batch with source and target")
        dropout = max(block.cross.dropout for block in self.spec.blocks if block.cross)
        return self._scope(batch, batch.source, View(causal=False), dropout, dtype, ask)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the layers, the way in and the way out; the loop over layers stays in Python."""
        for layer in self:
            layer.compile(*args, **options)
        self.enter = torch.compile(self.enter, *args, **options)  # type: ignore[method-assign]
        self.leave = torch.compile(self.leave, *args, **options)  # type: ignore[method-assign]

    def new_caches(self, sequences: int, capacity: int, *, cross: bool, like: Tensor) -> list[LayerCache]:
        """Empty caches for every layer, of the self-attention or of the attention to the source."""
        caches = []
        for layer in self:
            attention = layer.cross if cross else layer.attention
            assert attention is not None
            shape = (sequences + 1, attention.kv_heads, capacity, attention.head)
            made = LayerCache(store=(like.new_zeros(shape), like.new_zeros(shape)))
            caches.append(made if attention.prefix is None else remember(attention.prefix, made))
        return caches

    def _scope(self, queries: Batch, keys: Batch, view: View, dropout: float, dtype: torch.dtype, ask: Ask) -> Scope:
        device = queries.tokens.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        facts: Facts = {
            "device": device,
            "half": dtype in (torch.float16, torch.bfloat16),
            "whole": queries.whole and keys.whole,
            "length": max(queries.length, keys.length),
            "bias": view.bias is not None,
            "prefix": queries.prefix is not None and view.causal,
            "view": queries.view is not None and queries is keys,
            "window": view.window,
            "dropout": dropout if self.training else 0.0,
            "weights": ask.attention,
            "ahead": view.ahead,
            "head": self[0].attention.head,
        }
        backend: Backend = pick(**facts) if ask.backend is None or ask.attention else ask.backend
        missing = lacks(backend, **facts)
        if missing:
            raise UsageError(f"attention_backend '{backend}' cannot do {missing}; leave it open, or use 'rows'")
        return scope(queries, keys, view, backend, dtype)

    def _acts(self, where: str) -> bool:
        return self.spec.position is not None and self.spec.position.acts == where

    @staticmethod
    def _bias(module: nn.Module | None) -> Callable[[Tensor], Tensor]:
        assert module is not None
        return module
