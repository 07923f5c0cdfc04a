"""A stack of transformer blocks over a ragged batch, with embeddings, positions and final norm."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from pretune.core.config import Fraction, Ge, Le, NonEmpty, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.attention_mask import (
    AttentionContext,
    Backend,
    BackendRequirements,
    MaskSpec,
    build_context,
    choose_backend,
    find_unsupported,
)
from pretune.nn.block import Block, LayerStack, TransformerBlock
from pretune.nn.cache import DecodingStep, KVCache, LayerCache, Rotations, fill_prefix_cache, prepare_steps
from pretune.nn.layers import ACTIVATIONS, ActivationName, Dropout, Embed, LayerNorm, Norm, get_compute_dtype
from pretune.nn.positions import DistanceEmbedding, DistanceVectors, Position, Rotary

MAX_LAYERS = 10**4
"""Limit beyond which a stack is certainly a mistake."""


@spec
class Convolution:
    """norm(y + act(conv(x))) of the stack's input x and the first layer's output y (He et al., 2021).

    Every token has a window of `kernel` tokens of its own sequence, centred on it; there are zeros beyond its ends.
    """

    kernel: Annotated[int, Ge(1)] = 3
    groups: Positive[int] = 1
    activation: ActivationName = "tanh"
    norm: Norm = LayerNorm()
    dropout: Fraction = 0.0  # of the convolution's output

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise UsageError(f"kernel must be odd, got {self.kernel}")

    def build(self, *, width: int) -> "ConvolutionLayer":
        return ConvolutionLayer(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with."""
        if width % self.groups:
            raise UsageError(f"groups {self.groups} must divide width {width}")
        return self.kernel * width * width // self.groups

    def params(self, *, width: int) -> int:
        return self.count_weights(width=width) + width + self.norm.params(width=width)


class ConvolutionLayer(nn.Module):
    """Weights as in `torch.nn.Conv1d`: `[W, W / groups, kernel]`."""

    def __init__(self, spec: Convolution, width: int) -> None:
        super().__init__()
        self.kernel, self.groups = spec.kernel, spec.groups
        self.weight = Parameter(torch.empty(width, width // spec.groups, spec.kernel))
        self.bias = Parameter(torch.zeros(width))
        self.activate = ACTIVATIONS[spec.activation]
        self.norm = spec.norm.build(width=width)
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the first layer's output `[N, W]` with the convolution of the input `[N, W]`."""
        out: Tensor = self.norm(y + self.activate(self.dropout(self._convolve(x, batch.sequence))))
        return out.to(y.dtype)

    def _convolve(self, x: Tensor, sequence: Tensor) -> Tensor:
        """Convolve every sequence by itself: the windows side by side, times the weights.

        Sequences do not cross rows, so that neighbours of a flat batch with the same sequence are neighbours in it.
        """
        reach, (tokens, width) = self.kernel // 2, x.shape
        steps = torch.arange(-reach, reach + 1, device=x.device)
        places = torch.arange(tokens, device=x.device)[:, None] + steps  # [N, kernel]
        neighbours = places.clamp(0, tokens - 1)
        is_inside = (neighbours == places) & (sequence[neighbours] == sequence[:, None])
        windows = torch.where(is_inside[..., None], x[neighbours], 0.0)  # [N, kernel, W]
        if self.groups == 1:
            return F.linear(windows.flatten(1), self.weight.transpose(1, 2).flatten(1), self.bias)
        group_windows = windows.view(tokens, self.kernel, self.groups, -1)
        weight = self.weight.view(self.groups, -1, *self.weight.shape[1:])
        return torch.einsum("nkgi,goik->ngo", group_windows, weight).reshape(tokens, width) + self.bias


@spec
class Stack:
    """`depth` layers; the tuple `blocks` is cycled over them.

    `share` is the number of layers with their own weights (Lan et al., 2020). Layers are shared in groups of
    `group_size`: with depth 6, share 2 and groups of 1 the layers use the weights 0 0 0 1 1 1, with groups of 2 the
    weights 0 1 0 1 0 1.
    """

    depth: Annotated[int, Ge(1), Le(MAX_LAYERS)]
    blocks: Annotated[tuple[Block, ...], NonEmpty()]
    embed: Embed = Embed()
    position: Position | None = None
    causal: bool = False
    share: Positive[int] | None = None  # None: every layer
    group_size: Positive[int] = 1  # consecutive layers that are shared together
    norm: Norm | None = None  # after the last layer
    dropout: Fraction = 0.0  # after the final norm
    conv: Convolution | None = None  # of the input, added after the first layer

    def __post_init__(self) -> None:
        if self.share is not None and self.share > self.depth:
            raise UsageError(f"share must be <= depth {self.depth}, got {self.share}")
        if self.rotaries and self.position is not None and not isinstance(self.position, Rotary):
            raise UsageError("layers with their own rotary positions need a stack with rotary positions or none")
        if self.depth % self.group_size or (self.share or self.depth) % self.group_size:
            raise UsageError(f"depth and share must be multiples of group_size {self.group_size}")
        distances = self.position if isinstance(self.position, DistanceEmbedding) else None
        if self.causal and (self.conv is not None or distances is not None):
            raise UsageError("convolution and disentangled attention are for encoders; a causal stack cannot have them")
        if any((block.attention.distances is None) != (distances is None) for block in self.blocks):
            raise UsageError("disentangled attention needs the position 'disentangled', in every block, and vice versa")
        if distances is not None and distances.input is not None and self.embed.factor is not None:
            raise UsageError("absolute positions beside disentangled attention need a token table of the model's width")

    @property
    def layers(self) -> list[Block]:
        """The block of every layer with its own weights."""
        return [self.blocks[i % len(self.blocks)] for i in range(self.share or self.depth)]

    @property
    def counts_columns(self) -> bool:
        """True if attention depends on the columns between two tokens of a row: by a window, or a bias."""
        has_window = any(block.attention.window is not None for block in self.blocks)
        return has_window or (self.position is not None and self.position.mechanism not in ("rotation", "input"))

    @property
    def layer_indices(self) -> list[int]:
        """Index into `layers` for each of the `depth` layers."""
        size = self.group_size
        groups, rounds = (self.share or self.depth) // size, self.depth // size
        return [i // size * groups // rounds * size + i % size for i in range(self.depth)]

    @property
    def rotaries(self) -> list[Rotary]:
        """The rotary positions that single layers have."""
        return list(dict.fromkeys(block.attention.rotary for block in self.blocks if block.attention.rotary))

    def build(self, *, width: int, shared_stack: "TransformerStack | None" = None) -> "TransformerStack":
        return TransformerStack(self, width, shared_stack)

    def get_position_width(self, *, width: int) -> int:
        """Return the width of the vectors of positions; those of distances are as wide as the states."""
        return width if isinstance(self.position, DistanceEmbedding) else self.embed.get_inner_width(width=width)

    def position_params(self, *, width: int) -> int:
        heads = self.blocks[0].attention.heads
        return self.position.params(width=self.get_position_width(width=width), heads=heads) if self.position else 0

    def params(self, *, width: int) -> int:
        """Return the number of parameters, without the token table."""
        parts = (self.embed, *self.layers, self.conv, self.norm)
        return self.position_params(width=width) + sum(part.params(width=width) for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOutput:
    """States after the final norm, and the outputs requested by `OutputFlags`."""

    states: Tensor
    hidden: tuple[Tensor, ...] | None = None
    attention: tuple[Tensor, ...] | None = None  # per layer [rows, H, R, R]
    cross: tuple[Tensor, ...] | None = None
    raw_states: Tensor | None = None  # states before the last dropout, of a recurrent stack
    last_input: tuple[Tensor, AttentionContext] | None = None  # of the last layer


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    """Outputs to return besides the states, and a forced attention backend."""

    hidden: bool = False
    attention: bool = False
    scores: bool = False  # as attention, return the scores before the softmax; masked pairs have the lowest number
    backend: Backend | None = None


class TransformerStack(LayerStack[TransformerBlock]):
    """Module of a stack."""

    spec: Stack

    def __init__(self, spec: Stack, width: int, shared_stack: "TransformerStack | None" = None) -> None:
        super().__init__()
        self.spec = spec
        first = spec.blocks[0].attention
        heads, _, head_width = first.resolve_shape(width=width)
        self.embed = spec.embed.build(width=width)
        inner = spec.get_position_width(width=width)
        self.position = spec.position.build(width=inner, heads=heads, head_width=head_width) if spec.position else None
        self.rotaries = {  # stateless modules
            rotary: rotary.build(width=inner, heads=heads, head_width=head_width) for rotary in spec.rotaries
        }
        for i, block in enumerate(spec.layers):
            self.add_module(str(i), block.build(width=width, shared_block=shared_stack[i] if shared_stack else None))
        self.norm = spec.norm.build(width=width) if spec.norm else None
        self.conv = spec.conv.build(width=width) if spec.conv else None
        self.dropout = Dropout(spec.dropout)

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        source: Tensor | None = None,
        *,
        flags: OutputFlags = OutputFlags(),  # noqa: B008 (a frozen value)
        cache: KVCache | None = None,
    ) -> StackOutput:
        """Return the states of token embeddings `[N, table]`; `source` are the encoder's states of `batch.source`."""
        x = self.embed_inputs(x, self.shift_positions(batch.positions), batch.segments)
        dtype = get_compute_dtype(x)
        contexts = self.build_contexts(batch, dtype, flags)
        cross_context = None if source is None else self.build_cross_context(batch, dtype, flags)
        hidden, attention, cross = [x], [], []
        last_input = None
        for i, layer in enumerate(self):
            caches = None if cache is None else (cache.layers[i], cache.cross[i] if cache.cross else None)
            last_input = x, contexts[layer.attention.window, layer.attention.rotary]
            inputs = (*last_input, cross_context, source, caches)
            if self.activation_checkpointing and torch.is_grad_enabled():
                x, weights, cross_weights = checkpoint(layer, *inputs, use_reentrant=False)
            else:
                x, weights, cross_weights = layer(*inputs)
            if self.conv is not None and i == 0:
                x = self.conv(hidden[0], x, batch)
            if flags.hidden:
                hidden.append(x)
            if flags.attention:
                attention.append(weights)
                cross.append(cross_weights)
        x = self.apply_final_norm(x)
        return StackOutput(
            states=x,
            hidden=(*hidden[:-1], x) if flags.hidden else None,
            attention=tuple(attention) if flags.attention else None,
            cross=tuple(cross) if flags.attention and source is not None else None,
            last_input=last_input,
        )

    def step(self, x: Tensor, cache: KVCache, *, backend: Backend | None = None) -> Tensor:
        """Return the states `[B, W]` of one new token per sequence, and append it to the cache.

        All backends share one implementation.
        """
        positions = self.shift_positions(cache.lengths)
        x = self.embed_inputs(x, positions, None)
        build_step = prepare_steps(cache, self.compute_rotations(positions, get_compute_dtype(x)), self._bias)
        steps: dict[Any, DecodingStep] = {}
        for i, layer in enumerate(self):
            attention, caches = layer.attention, (cache.layers[i], cache.cross[i] if cache.cross else None)
            key = attention.window, attention.rotary, attention.kv_heads
            if key not in steps:
                steps[key] = build_step(*key)
            x = layer.step(x, steps[key], caches)
        cache.lengths = cache.lengths + 1
        return self.apply_final_norm(x)

    @property
    def prefix_length(self) -> int:
        """Number of learned keys before each sequence, in every layer."""
        prefix = self[0].attention.prefix
        return 0 if prefix is None else prefix.count

    def shift_positions(self, positions: Tensor) -> Tensor:
        """Shift positions by the length of the learned prefix."""
        return positions + self.prefix_length if self.prefix_length else positions

    def embed_inputs(self, x: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        position_states = self._embed_positions(positions)
        out: Tensor = self.embed(x, position_states, segments)
        return out if self.residual_dtype is None else out.to(self.residual_dtype)

    def _embed_positions(self, positions: Tensor) -> Tensor | None:
        """Return the vectors of absolute positions, if the input has them."""
        module = self.position.input if isinstance(self.position, DistanceVectors) else self.position
        if module is None or not (self._has_position("input") or self._has_position("distance")):
            return None
        out: Tensor = module(positions)
        return out

    def apply_final_norm(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(x if self.norm is None else self.norm(x))
        return out

    def build_contexts(
        self, batch: Batch, dtype: torch.dtype, flags: OutputFlags
    ) -> dict[tuple[int | None, Rotary | None], AttentionContext]:
        """Build one context per window and rotary positions in the block pattern."""
        rotations = self.compute_rotations(self.shift_positions(batch.positions), dtype)
        distances = self.position(batch.length) if isinstance(self.position, DistanceVectors) else None
        contexts = {}
        for window in dict.fromkeys(block.attention.window for block in self.spec.blocks):
            attentions = [block.attention for block in self.spec.blocks if block.attention.window == window]
            mask_spec = MaskSpec(
                causal=self.spec.causal, window=window, bias=self._bias, prefix_length=self.prefix_length
            )
            context = self._build_context(
                batch, batch, mask_spec, max(attention.dropout for attention in attentions), dtype, flags
            )
            for rotary in {attention.rotary for attention in attentions}:
                contexts[window, rotary] = replace(context, rotation=rotations[rotary], distances=distances)
        return contexts

    def build_cross_context(self, batch: Batch, dtype: torch.dtype, flags: OutputFlags) -> AttentionContext:
        """Build the context of the cross-attention."""
        if batch.source is None:
            raise UsageError("an encoder-decoder needs a batch with source and target")
        dropout = max(block.cross.dropout for block in self.spec.blocks if block.cross)
        return self._build_context(batch, batch.source, MaskSpec(causal=False), dropout, dtype, flags)

    def list_compiled_parts(self) -> Iterable[nn.Module | None]:
        return *self, self.conv

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile layers, embeddings and final norm; the loop over layers stays in Python."""
        super().compile(*args, **options)
        self.embed_inputs = torch.compile(self.embed_inputs, *args, **options)  # type: ignore[method-assign]
        self.apply_final_norm = torch.compile(self.apply_final_norm, *args, **options)  # type: ignore[method-assign]

    def new_caches(self, sequences: int, capacity: int, *, cross: bool, like: Tensor) -> list[LayerCache]:
        """Return empty caches for every layer, of self-attention or cross-attention."""
        caches = []
        for layer in self:
            attention = layer.cross if cross else layer.attention
            assert attention is not None
            shape = (sequences + 1, attention.kv_heads, capacity, attention.head)
            cache = LayerCache(store=(like.new_zeros(shape), like.new_zeros(shape)))
            caches.append(cache if attention.prefix is None else fill_prefix_cache(attention.prefix, cache))
        return caches

    def _build_context(
        self, queries: Batch, keys: Batch, mask_spec: MaskSpec, dropout: float, dtype: torch.dtype, flags: OutputFlags
    ) -> AttentionContext:
        needs = BackendRequirements(
            device=queries.tokens.device.type,
            half=dtype in (torch.float16, torch.bfloat16),
            one_per_row=queries.one_per_row and keys.one_per_row,
            length=max(queries.length, keys.length),
            bias=mask_spec.bias is not None,
            prefix=queries.prefix is not None and mask_spec.causal,
            view=queries is keys and (queries.view is not None or queries.parents is not None),
            window=mask_spec.window,
            dropout=dropout if self.training else 0.0,
            weights=flags.attention,
            prefix_length=mask_spec.prefix_length,
            head=self[0].attention.head,
            distances=self._has_position("distance") and queries is keys,
        )
        backend: Backend = choose_backend(needs) if flags.backend is None or flags.attention else flags.backend
        missing = find_unsupported(backend, needs)
        if missing:
            raise UsageError(f"attention_backend '{backend}' does not support {missing}; unset it, or use 'rows'")
        context = build_context(queries, keys, mask_spec, backend, dtype)
        return replace(context, scores=True) if flags.scores else context

    def compute_rotations(self, positions: Tensor, dtype: torch.dtype) -> Rotations:
        """Return the rotation of the stack's positions (key None) and of each layer's own."""
        modules: list[tuple[Rotary | None, nn.Module]] = [*self.rotaries.items()]
        if self.position is not None and self._has_position("rotation"):
            modules.append((None, self.position))
        rotations: dict[Rotary | None, tuple[Tensor, Tensor] | None] = {None: None}
        for rotary, module in modules:
            cos, sin = module(positions)
            rotations[rotary] = cos.to(dtype), sin.to(dtype)
        return rotations

    def _has_position(self, mechanism: str) -> bool:
        return self.spec.position is not None and self.spec.position.mechanism == mechanism

    @property
    def _bias(self) -> Callable[[Tensor], Tensor] | None:
        """The bias of attention scores by distance, if the positions are one."""
        return self.position if self._has_position("bias") else None
