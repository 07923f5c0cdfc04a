"""A transformer layer: self-attention, optional cross-attention, feed-forward.

The norm slots that are filled determine pre-norm or post-norm; the forward pass has no branch for it.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from pretune.core.config import Fraction, spec
from pretune.core.errors import UsageError
from pretune.nn.attention import Attention, MultiHeadAttention
from pretune.nn.attention_mask import AttentionContext
from pretune.nn.cache import DecodingStep, LayerCache
from pretune.nn.layers import Dropout, FeedForward, FeedForwardLayer, Norm

Layer = TypeVar("Layer", bound=nn.Module)


MAX_GRAPHS = 256
"""Graphs of a compiled function in one process: one for each shape of a model and of its batches."""


def raise_graph_limit() -> None:
    """Let the compiler keep `MAX_GRAPHS` graphs of a function: beyond 8, its default, it runs others uncompiled.

    Models share the function of a layer, so a process that trains or generates with nine shapes would become slower.
    """
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, MAX_GRAPHS)


class RegionalCompile(nn.Module):
    """Base class of modules that are compiled part by part: layers of the same kind share a graph for every layout."""

    def list_compiled_parts(self) -> Iterable[nn.Module | None]:
        """Return the parts to compile, None for one that is missing; what joins them stays in Python."""
        raise NotImplementedError

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile each part, with the options of `torch.compile`."""
        raise_graph_limit()
        for part in self.list_compiled_parts():
            if part is not None:
                part.compile(*args, **options)


class LayerStack(RegionalCompile, Generic[Layer]):
    """Base class of stacks. Layers are named by their index: `encoder.3.attention.q.weight`."""

    spec: Any
    residual_dtype: torch.dtype | None = None  # of the residual stream; None: dtype of the embeddings
    activation_checkpointing = False  # recompute activations in the backward pass

    def __init__(self) -> None:
        super().__init__()
        self.position: nn.Module | None = None
        self.norm: nn.Module | None = None

    def __getitem__(self, i: int) -> Layer:
        return self._modules[str(i)]  # type: ignore[return-value]

    def __iter__(self) -> Iterator[Layer]:
        """Iterate over the layers in the order they are applied."""
        return (self[i] for i in self.spec.layer_indices)

    def list_compiled_parts(self) -> Iterable[nn.Module | None]:
        return self

    @property
    def prefix_length(self) -> int:
        """Number of learned keys before each sequence, in every layer, that take positions."""
        return 0


@spec
class Norms:
    """Slots around each sublayer f: post(x + out(f(pre(x)))).

    `pre` filled is pre-norm, `post` post-norm, `out` the reordered norm of OLMo 2 (Walsh et al., 2025).
    """

    pre: Norm | None = None
    out: Norm | None = None
    post: Norm | None = None

    def build(self, *, width: int) -> "NormSlots":
        return NormSlots(self, width)

    def params(self, *, width: int) -> int:
        return sum(norm.params(width=width) for norm in (self.pre, self.out, self.post) if norm)


class NormSlots(nn.Module):
    def __init__(self, spec: Norms, width: int) -> None:
        super().__init__()
        self.pre = spec.pre.build(width=width) if spec.pre else nn.Identity()
        self.out = spec.out.build(width=width) if spec.out else nn.Identity()
        self.post = spec.post.build(width=width) if spec.post else nn.Identity()

    def add(self, x: Tensor, change: Tensor) -> Tensor:
        """Add a sublayer's output to the residual stream, keeping its dtype: norms run in fp32 under autocast."""
        out = x + change
        if type(self.post) is not nn.Identity:
            out = self.post(out)
        return out.to(x.dtype)


@spec
class Block:
    """A transformer layer; `cross` is filled in the decoder of an encoder-decoder."""

    attention: Attention
    feedforward: FeedForward
    norms: Norms
    cross: Attention | None = None
    parallel: bool = False  # attention and feed-forward have the same input; their outputs are added
    dropout: Fraction = 0.0  # of each sublayer's output
    attention_norms: Norms | None = None  # of the self-attention; None: the same as `norms`

    def __post_init__(self) -> None:
        if self.parallel and (self.cross is not None or self.norms.post is not None):
            raise UsageError("a parallel block cannot have cross-attention or a post-norm")

    def build(self, *, width: int, shared_block: "TransformerBlock | None" = None) -> "TransformerBlock":
        return TransformerBlock(self, width, shared_block)

    def params(self, *, width: int) -> int:
        parts = (self.attention, self.cross, self.feedforward, *self.list_norms())
        return sum(part.params(width=width) for part in parts if part)

    def list_norms(self) -> list[Norms]:
        """Return the norms of each sublayer, self-attention first."""
        first = self.norms if self.attention_norms is None else self.attention_norms
        return [first, *[self.norms] * (2 if self.cross else 1)]


class TransformerBlock(nn.Module):
    def __init__(self, spec: Block, width: int, shared_block: "TransformerBlock | None" = None) -> None:
        super().__init__()
        self.parallel = spec.parallel

        def build(name: str, part: Any) -> Any:
            return getattr(shared_block, name) if shared_block else part.build(width=width)

        self.attention: MultiHeadAttention = build("attention", spec.attention)
        self.attention_norm: NormSlots = build("attention_norm", spec.list_norms()[0])
        self.cross = spec.cross.build(width=width) if spec.cross else None
        self.cross_norm = spec.norms.build(width=width) if spec.cross else None
        self.feedforward: FeedForwardLayer = build("feedforward", spec.feedforward)
        self.feedforward_norm: NormSlots = build("feedforward_norm", spec.norms)
        self.dropout = Dropout(spec.dropout)

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        cross_context: AttentionContext | None = None,
        source: Tensor | None = None,
        caches: tuple[LayerCache, LayerCache | None] | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the layer's output `[N, W]`, and self- and cross-attention weights if the backend has them."""
        self_cache, cross_cache = caches or (None, None)
        attention, weights = self.attention(self.attention_norm.pre(x), context, None, self_cache)
        if self.cross is None or self.cross_norm is None or cross_context is None:
            return self.finish(x, attention), weights, None
        x = self.attention_norm.add(x, self.dropout(self.attention_norm.out(attention)))
        attention, cross_weights = self.cross(self.cross_norm.pre(x), cross_context, source, cross_cache)
        x = self.cross_norm.add(x, self.dropout(self.cross_norm.out(attention)))
        return self.feedforward_norm.add(x, self._feedforward(x)), weights, cross_weights

    def finish(self, x: Tensor, attention: Tensor) -> Tensor:
        """Return the output of a layer without cross-attention, from its input and the output of self-attention."""
        attention = self.dropout(self.attention_norm.out(attention))
        if self.parallel:
            return x + attention + self._feedforward(x)
        x = self.attention_norm.add(x, attention)
        return self.feedforward_norm.add(x, self._feedforward(x))

    def step(self, x: Tensor, step: DecodingStep, caches: tuple[LayerCache, LayerCache | None]) -> Tensor:
        """Run the layer on one new token per sequence `[B, W]`."""
        self_cache, cross_cache = caches
        attention: Tensor = self.attention_norm.out(self.attention.step(self.attention_norm.pre(x), step, self_cache))
        if self.parallel:
            return x + attention + self._feedforward(x)
        x = self.attention_norm.add(x, attention)
        if self.cross is not None and self.cross_norm is not None and cross_cache is not None:
            attention = self.cross.step(self.cross_norm.pre(x), step, cross_cache, cross=True)
            x = self.cross_norm.add(x, self.cross_norm.out(attention))
        return self.feedforward_norm.add(x, self._feedforward(x))

    def _feedforward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.feedforward_norm.out(self.feedforward(self.feedforward_norm.pre(x))))
        return out
