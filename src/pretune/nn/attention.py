"""Multi-head self-attention and cross-attention, and its backends: six implementations of the same function.

A backend takes queries `[N, H, D]`, keys and values `[M, K, D]` (K divides H: grouped-query) and returns `[N, H, D]`,
with the weights `[rows, H, R, R]` (without learned keys) if it has them. Legend: N queries, M keys, H heads, K
key-value heads, D head width.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

from pretune.core.config import Fraction, Positive, spec
from pretune.core.errors import UsageError
from pretune.nn.attention_mask import AttentionContext
from pretune.nn.cache import KVPrefix, LayerCache, prepend_prefix
from pretune.nn.decoding_step import DecodingStep
from pretune.nn.layers import Dropout, Norm
from pretune.nn.layers import dropout as apply_dropout
from pretune.nn.positions import DistanceTerms, Rotary, rotate

AttentionResult = tuple[Tensor, Tensor | None]


def attend(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, *, scale: float, dropout: float
) -> AttentionResult:
    """Compute attention with the backend of the context."""
    return _TABLE[context.backend](q, k, v, context, scale, dropout)


def _attend_rows(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float
) -> AttentionResult:
    q, k, v = _split_rows(q, k, v, context.rows)
    if dropout and v.device.type == "cpu":
        return _attend_with_dropout(q, k, v, context.mask, scale, dropout), None
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=context.mask, dropout_p=dropout, scale=scale)
    return _flatten_rows(out), None


def _attend_with_dropout(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, p: float) -> Tensor:
    """Compute SDPA with attention dropout on a CPU, with the fast dropout of `pretune.nn.layers`."""
    scores = (q * scale) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return _flatten_rows(apply_dropout(scores.softmax(-1), p) @ v)


def _attend_sdpa(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float
) -> AttentionResult:
    q, k, v = _split_rows(q, k, v, context.rows)
    causal = context.causal and context.mask is None  # NOTE: with more keys than queries, torch aligns the first ones
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=context.mask, is_causal=causal, dropout_p=dropout, scale=scale
    )
    return _flatten_rows(out), None


def _attend_eager(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float
) -> AttentionResult:
    dtype, exact = v.dtype, torch.promote_types(v.dtype, torch.float32)
    with torch.autocast(v.device.type, enabled=False):  # the reference is exact
        return _attend_eager_exact(
            *_split_rows(q.to(exact), k.to(exact), v.to(exact), context.rows), context, scale, dropout, dtype
        )


def _attend_eager_exact(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float, dtype: torch.dtype
) -> AttentionResult:
    scores = (q @ k.transpose(-1, -2)) * scale
    if context.bias is not None:
        scores = scores + context.bias
    if context.mask is not None:
        scores = scores.masked_fill(~context.mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    output = _flatten_rows(apply_dropout(weights, dropout) @ v).to(dtype)
    return output, (scores if context.scores else weights)[..., context.prefix_length :]


def _attend_varlen(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float
) -> AttentionResult:
    from pretune.nn.varlen import SUPPORTS_GQA, attend_varlen

    assert context.offsets is not None and not dropout, (
        "varlen has no attention dropout; choose_backend never selects it"
    )
    if not SUPPORTS_GQA:
        k, v = _repeat_kv(q, k, v)
    out = attend_varlen(
        q, k, v, context.offsets, context.lengths, causal=context.causal, window=context.window, scale=scale
    )
    return out, None


def _attend_tiles(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float
) -> AttentionResult:
    from pretune.nn.tiles import attend_tiles

    layout, causal, window = context.blocks, context.causal, context.window
    return attend_tiles(q, k, v, layout, context.bias, causal=causal, window=window, scale=scale, dropout=dropout), None


def _attend_flex(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float
) -> AttentionResult:
    assert not dropout, "flex has no attention dropout; choose_backend never selects it"
    q, k, v = _split_rows(q, k, v, context.rows)
    bias, last, prefix_length, positions = (
        context.bias,
        context.lengths[0] - 1,
        context.prefix_length,
        context.positions,
    )
    options = None if bias is None else _SMALL_TILES

    def score(value: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert bias is not None
        if positions is None:
            return value + bias[head, key - query + last]
        distance = key - prefix_length - torch.where(key < prefix_length, positions[row, query], query)
        return value + bias[head, distance + prefix_length + last]

    if q.is_cuda and not torch.compiler.is_compiling():
        run = _COMPILED_KERNELS.setdefault("flex", torch.compile(flex_attention))
    else:
        run = flex_attention
    out: Tensor = run(
        q,
        k,
        v,
        score_mod=None if bias is None else score,
        block_mask=context.blocks,
        scale=scale,
        kernel_options=options,
    )
    return _flatten_rows(out), None


# NOTE: the gradient of a learned bias table is in shared memory; at head width 64 the default tiles do not fit.
_SMALL_TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32}

_COMPILED_KERNELS: dict[str, Any] = {}  # flex is slow unless compiled; compiled on first use

_TABLE: dict[str, Callable[[Tensor, Tensor, Tensor, AttentionContext, float, float], AttentionResult]] = {
    "rows": _attend_rows,
    "sdpa": _attend_sdpa,
    "eager": _attend_eager,
    "varlen": _attend_varlen,
    "tiles": _attend_tiles,
    "flex": _attend_flex,
}


def _split_rows(q: Tensor, k: Tensor, v: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Reshape to `[rows, H, R, D]`. Keys are repeated for every head: SDPA is slow with grouped queries and a mask."""
    k, v = _repeat_kv(q, k, v)
    q, k, v = (x.view(rows, -1, x.shape[1], x.shape[2]).transpose(1, 2) for x in (q, k, v))
    return q, k, v


def _flatten_rows(out: Tensor) -> Tensor:
    return out.transpose(1, 2).flatten(0, 1)


def _repeat_kv(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    times = q.shape[1] // k.shape[1]
    if times == 1:
        return k, v
    return k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)


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
    out_dropout: Fraction = 0.0  # of the output
    rotary: Rotary | None = None  # positions of this layer; None: those of the stack
    distances: DistanceTerms | None = None  # scores of distances, as in DeBERTa

    def __post_init__(self) -> None:
        if self.distances is not None and (
            not self.bias or any(part is not None for part in (self.kv_heads, self.head_width, self.window, self.norm))
        ):
            raise UsageError("disentangled attention has biases and no kv_heads, head_width, window or norm")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise UsageError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")

    @property
    def products(self) -> int:
        """Products per query and key: score, weight with value, and the terms of distances."""
        return 2 + (len(self.distances.terms) if self.distances else 0)

    def resolve_shape(self, *, width: int) -> tuple[int, int, int]:
        """Return heads, key-value heads and head width."""
        if self.head_width is None and width % self.heads:
            raise UsageError(f"heads {self.heads} must divide width {width}; otherwise set head_width")
        return self.heads, self.kv_heads or self.heads, self.head_width or width // self.heads

    def build(self, *, width: int) -> "MultiHeadAttention":
        if self.distances is None:
            return MultiHeadAttention(self, width)
        from pretune.nn.disentangled_attention import DisentangledAttention

        return DisentangledAttention(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with."""
        heads, kv_heads, head = self.resolve_shape(width=width)
        return 2 * width * head * (heads + kv_heads)

    def params(self, *, width: int) -> int:
        heads, kv_heads, head = self.resolve_shape(width=width)
        count = self.count_weights(width=width) + self.bias * (head * (heads + 2 * kv_heads) + width)
        if self.norm is not None:
            count += self.norm.params(width=heads * head) + self.norm.params(width=kv_heads * head)
        return count + (self.distances.params(width=width) if self.distances else 0)


class MultiHeadAttention(nn.Module):
    """q, k, v and out are separate modules with stable names; linear layers are fused into one product."""

    def __init__(self, spec: Attention, width: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = spec.resolve_shape(width=width)
        self.scale = self.head**-0.5 if spec.scale is None else spec.scale
        self.clip, self.dropout, self.window, self.rotary = spec.clip, spec.dropout, spec.window, spec.rotary
        self.out_dropout = Dropout(spec.out_dropout)
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
        attention, weights = self.attend_heads(q, k, v, context)
        return self.out_dropout(self.out(attention.flatten(1))), weights

    def attend_heads(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Attend from queries `[N, H, D]` to keys and values `[M, K, D]`, and to the learned ones, if there are any."""
        if self.prefix is not None:
            k, v = prepend_prefix(self.prefix, k, v, context.rows)
        return attend(q, k, v, context, scale=self.scale, dropout=self.dropout if self.training else 0.0)

    def step(self, x: Tensor, step: DecodingStep, cache: LayerCache, *, cross: bool = False) -> Tensor:
        """Attend from one new token per sequence `[B, W]` to the cache; in self-attention, append its key and value."""
        if cross:
            q = self.project_queries(x)
        else:
            q, k, v = self.project(x, None)
            if step.rotation is not None:
                q, k = rotate(q, step.rotation), rotate(k, step.rotation)
            step.append(cache, k, v)
        keys, values = (cache.keys, cache.values) if cross else step.read(cache)  # [B, K, T, D]
        mask = step.source_mask if cross else step.mask
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(q.dtype)
        queries = q.view(q.shape[0], self.kv_heads, -1, self.head)  # heads that share a key, as queries
        attention = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=self.scale)
        out: Tensor = self.out(attention.flatten(1))
        return out

    def project(self, x: Tensor, source: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries `[N, H, D]`, keys and values `[M, K, D]`."""
        if source is None and x.shape[0] >= FUSE_MIN_TOKENS and _can_fuse(self.q, self.k, self.v):
            q, k, v = _fuse_projections(x, self.q, self.k, self.v)
        elif source is not None and source.shape[0] >= FUSE_MIN_TOKENS and _can_fuse(self.k, self.v):
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

    def project_queries(self, x: Tensor) -> Tensor:
        """Return the queries `[N, H, D]`."""
        return self._split(self._clamp(self.q(x)), self.heads, self.q_norm)

    def project_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values `[N, K, D]`."""
        keys = self._split(self._clamp(self.k(x)), self.kv_heads, self.k_norm)
        return keys, self._split(self._clamp(self.v(x)), self.kv_heads, None)

    def _clamp(self, x: Tensor) -> Tensor:
        return x if self.clip is None else x.clamp(-self.clip, self.clip)

    def _split(self, x: Tensor, heads: int, norm: nn.Module | None) -> Tensor:
        # NOTE: CUDA autocast runs norms in fp32, but the kernels need q, k and v of the same dtype.
        x = x if norm is None else norm(x).to(x.dtype)
        return x.reshape(x.shape[0], heads, self.head)


def _can_fuse(*layers: nn.Module) -> bool:
    """Return True for linear layers, and for layers whose output is `finish(x, product)` of a linear product.

    The latter have `weight` and `bias`, such as a low-rank or scaled projection. Layers that compute their products
    otherwise (`multiply`) are fused with each other only.
    """
    if len({hasattr(layer, "multiply") for layer in layers}) > 1:
        return False
    has_product = hasattr(layers[0], "multiply")
    return all(
        (has_product or type(layer) is nn.Linear or (hasattr(layer, "finish") and hasattr(layer, "weight")))
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        for layer in layers
    )


def _fuse_projections(x: Tensor, *layers: nn.Linear) -> list[Tensor]:
    """Return the output of each layer for x, computed in one product."""
    biases: list[Tensor | None] = [part.bias for part in layers]
    bias = None
    if any(bias_part is not None for bias_part in biases):
        pairs = zip(layers, biases, strict=True)
        bias = torch.cat(
            [part.weight.new_zeros(part.out_features) if bias_part is None else bias_part for part, bias_part in pairs]
        )
    multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor] = getattr(layers[0], "multiply", F.linear)
    product = multiply(x, _stack_weights([part.weight for part in layers]), bias)
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
