"""Multi-head self-attention and cross-attention."""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.config import Fraction, Positive, spec
from pretune.core.errors import UsageError
from pretune.nn.attention_mask import AttentionContext
from pretune.nn.backends import attend
from pretune.nn.cache import DecodingStep, KVPrefix, LayerCache, prepend_prefix
from pretune.nn.layers import Norm
from pretune.nn.positions import rotate

FUSE_MIN_TOKENS = 256
"""Number of tokens from which one product with the concatenated weights of q, k and v beats three."""


@spec
class Attention:
    """Scaled dot-product attention (Vaswani et al., 2017); grouped-query if `kv_heads` < `heads`."""

    heads: Positive[int]
    kv_heads: Positive[int] | None = None
    head_width: Positive[int] | None = None  # width / heads
    bias: bool = True
    scale: float | None = None  # 1 / sqrt(head_width)
    window: Positive[int] | None = None  # visible tokens to the left (and right), itself included
    norm: Norm | None = None  # of queries and keys, over all heads together
    clip: Positive[float] | None = None  # queries, keys and values are clamped to +- clip
    dropout: Fraction = 0.0  # of the attention probabilities

    products: ClassVar[int] = 2  # products per query and key: score, and weight with value

    def __post_init__(self) -> None:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise UsageError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")

    def resolve_shape(self, *, width: int) -> tuple[int, int, int]:
        """Return heads, key-value heads and head width."""
        if self.head_width is None and width % self.heads:
            raise UsageError(f"heads {self.heads} must divide width {width}; otherwise set head_width")
        return self.heads, self.kv_heads or self.heads, self.head_width or width // self.heads

    def build(self, *, width: int) -> "MultiHeadAttention":
        return MultiHeadAttention(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with."""
        heads, kv_heads, head = self.resolve_shape(width=width)
        return 2 * width * head * (heads + kv_heads)

    def params(self, *, width: int) -> int:
        heads, kv_heads, head = self.resolve_shape(width=width)
        count = self.count_weights(width=width) + self.bias * (head * (heads + 2 * kv_heads) + width)
        if self.norm is not None:
            count += self.norm.params(width=heads * head) + self.norm.params(width=kv_heads * head)
        return count


class MultiHeadAttention(nn.Module):
    """q, k, v and out are separate modules with stable names; linear layers are fused into one product."""

    def __init__(self, spec: Attention, width: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = spec.resolve_shape(width=width)
        self.scale = self.head**-0.5 if spec.scale is None else spec.scale
        self.clip, self.dropout, self.window = spec.clip, spec.dropout, spec.window
        self.q = nn.Linear(width, self.heads * self.head, bias=spec.bias)
        self.k = nn.Linear(width, self.kv_heads * self.head, bias=spec.bias)
        self.v = nn.Linear(width, self.kv_heads * self.head, bias=spec.bias)
        self.out = nn.Linear(self.heads * self.head, width, bias=spec.bias)
        self.q_norm = None if spec.norm is None else spec.norm.build(width=self.heads * self.head)
        self.k_norm = None if spec.norm is None else spec.norm.build(width=self.kv_heads * self.head)
        self.prefix: KVPrefix | None = None  # learned keys and values before each sequence

    def forward(
        self, x: Tensor, context: AttentionContext, source: Tensor | None = None, cache: LayerCache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Attend within `x`, or from `x` to `source`; writes keys and values to `cache`, if given."""
        q, k, v = self.project(x, source)
        if context.rotation is not None and source is None:
            q, k = rotate(q, context.rotation), rotate(k, context.rotation)
        if cache is not None:
            cache.fill(k, v)
        if self.prefix is not None:
            k, v = prepend_prefix(self.prefix, k, v, context.rows)
        attention, weights = attend(q, k, v, context, scale=self.scale, dropout=self.dropout if self.training else 0.0)
        return self.out(attention.flatten(1)), weights

    def step(self, x: Tensor, step: DecodingStep, cache: LayerCache, *, cross: bool = False) -> Tensor:
        """Attend from one new token per sequence `[B, W]` to the cache; in self-attention, append its key and value."""
        if cross:
            q = self._split(self._clamp(self.q(x)), self.heads, self.q_norm)
        else:
            q, k, v = self.project(x, None)
            if step.rotation is not None:
                q, k = rotate(q, step.rotation), rotate(k, step.rotation)
            cache.put(k, v, step.columns)
        mask = step.source_mask if cross else step.build_mask(self.window)
        if step.bias is not None and mask is not None and not cross:
            bias = step.bias.view(step.bias.shape[0], self.kv_heads, -1, step.bias.shape[-1])
            mask = bias.masked_fill(~mask, float("-inf")).to(q.dtype)
        keys, values = cache.keys, cache.values  # [B, K, T, D]
        queries = q.view(q.shape[0], self.kv_heads, -1, self.head)  # heads that share a key, as queries
        attention = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=self.scale)
        out: Tensor = self.out(attention.flatten(1))
        return out

    def project(self, x: Tensor, source: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries `[N, H, D]`, keys and values `[M, K, D]`."""
        if (
            source is None
            and x.shape[0] >= FUSE_MIN_TOKENS
            and all(_can_fuse(part) for part in (self.q, self.k, self.v))
        ):
            q, k, v = _fuse_projections(x, self.q, self.k, self.v)
        elif (
            source is not None
            and source.shape[0] >= FUSE_MIN_TOKENS
            and all(_can_fuse(part) for part in (self.k, self.v))
        ):
            q = self.q(x)
            k, v = _fuse_projections(source, self.k, self.v)
        else:
            read = x if source is None else source
            q, k, v = self.q(x), self.k(read), self.v(read)
        q, k, v = self._clamp(q), self._clamp(k), self._clamp(v)
        return (
            self._split(q, self.heads, self.q_norm),
            self._split(k, self.kv_heads, self.k_norm),
            self._split(v, self.kv_heads, None),
        )

    def _clamp(self, x: Tensor) -> Tensor:
        return x if self.clip is None else x.clamp(-self.clip, self.clip)

    def _split(self, x: Tensor, heads: int, norm: nn.Module | None) -> Tensor:
        # NOTE: CUDA autocast runs norms in fp32, but the kernels need q, k and v of the same dtype.
        x = x if norm is None else norm(x).to(x.dtype)
        return x.reshape(x.shape[0], heads, self.head)


def _can_fuse(layer: nn.Module) -> bool:
    """Return True for a linear layer, or for a layer whose output is `finish(x, product)` of a linear product.

    The latter has `weight` and `bias`, such as a low-rank or scaled projection.
    """
    kind = type(layer) is nn.Linear or (hasattr(layer, "finish") and hasattr(layer, "weight"))
    return kind and not layer._forward_hooks and not layer._forward_pre_hooks


def _fuse_projections(x: Tensor, *layers: nn.Linear) -> list[Tensor]:
    """Return the output of each layer for x, computed in one product."""
    biases: list[Tensor | None] = [part.bias for part in layers]
    bias = None
    if any(bias_part is not None for bias_part in biases):
        pairs = zip(layers, biases, strict=True)
        bias = torch.cat(
            [part.weight.new_zeros(part.out_features) if bias_part is None else bias_part for part, bias_part in pairs]
        )
    product = F.linear(x, _stack_weights([part.weight for part in layers]), bias)
    outputs = torch.split(product, [part.out_features for part in layers], dim=-1)
    return [_finish_projection(part, x, y) for part, y in zip(layers, outputs, strict=True)]


def _stack_weights(weights: list[Tensor]) -> Tensor:
    """Concatenate weights `[out, in]`, keeping a column-major memory layout."""
    if all(weight.stride(0) == 1 for weight in weights):
        return torch.cat([weight.t() for weight in weights], dim=1).t()
    return torch.cat(weights)


def _finish_projection(layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    finish: Callable[[Tensor, Tensor], Tensor] | None = getattr(layer, "finish", None)
    return y if finish is None else finish(x, y)
