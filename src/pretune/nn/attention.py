"""Multi-head self-attention and cross-attention, and disentangled attention: scores by content and by distance.

In disentangled attention (He et al., 2021) a query q at distance d (query position minus key position) of a key k has
the score

    q · k  +  q · kr(d)  +  k · qr(d)          content to content, content to position, position to content

where kr and qr are projections of the vector of d (`DistanceEmbedding` of `pretune.nn.positions`), divided by the
square root of the head width times the number of terms. Legend: N queries, M keys, H heads, K key-value heads, D head
width, R row length.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.config import Fraction, Positive, spec
from pretune.core.errors import UsageError
from pretune.nn.attention_backends import AttentionResult, attend, can_backend_rotate, repeat_kv
from pretune.nn.attention_mask import AttentionContext
from pretune.nn.cache import DecodingStep, KVPrefix, LayerCache, prepend_prefix
from pretune.nn.layers import Dropout, Norm, PerHead
from pretune.nn.layers import dropout as apply_dropout
from pretune.nn.positions import DistanceTable, DistanceTerms, Rotary, Rotation, rotate
from pretune.nn.relative_attention import shift_scores

Projection = Literal["q", "k", "v", "out"]
PROJECTIONS: tuple[Projection, ...] = get_args(Projection)

FUSE_MIN_TOKENS = 256
"""Number of tokens from which one product with the concatenated weights of q, k and v beats three."""


@spec
class Attention:
    """Scaled dot-product attention (Vaswani et al., 2017); grouped-query if `kv_heads` < `heads`."""

    heads: Positive[int]
    kv_heads: Positive[int] | None = None
    head_width: Positive[int] | None = None  # width / heads
    bias: bool | tuple[Projection, ...] = True  # of all projections, of none, or of these
    scale: float | None = None  # 1 / sqrt(head_width)
    window: Positive[int] | None = None  # visible tokens to the left (and right), itself included
    norm: Norm | PerHead | None = None  # of queries and keys: over all heads together, or within each head
    clip: Positive[float] | None = None  # queries, keys and values are clamped to +- clip
    dropout: Fraction = 0.0  # of the attention probabilities
    out_dropout: Fraction = 0.0  # of the output
    rotary: Rotary | None = None  # positions of this layer; None: those of the stack
    distances: DistanceTerms | None = None  # scores of distances, as in DeBERTa

    def __post_init__(self) -> None:
        if isinstance(self.bias, tuple) and not 0 < len({*self.bias} & {*PROJECTIONS}) == len(self.bias) < 4:
            raise UsageError(f"bias must be true, false or some of {', '.join(PROJECTIONS)}, got {self.bias}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise UsageError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")

    @property
    def bias_names(self) -> tuple[Projection, ...]:
        """The projections that have a bias."""
        if isinstance(self.bias, tuple):
            return self.bias
        return PROJECTIONS if self.bias else ()

    @property
    def products(self) -> int:
        """Products per query and key: score, weight with value, and the terms of distances."""
        return 2 + (len(self.distances.terms) if self.distances else 0)

    def resolve_shape(self, *, width: int) -> tuple[int, int, int]:
        """Return heads, key-value heads and head width."""
        if self.head_width is None and width % self.heads:
            raise UsageError(f"heads {self.heads} must divide width {width}; otherwise set head_width")
        return self.heads, self.kv_heads or self.heads, self.head_width or width // self.heads

    def get_norm_width(self, heads: int, head: int) -> int:
        """Return the width of the norm of queries, or keys, of `heads` heads."""
        return head if isinstance(self.norm, PerHead) else heads * head

    def build(self, *, width: int) -> "MultiHeadAttention":
        return MultiHeadAttention(self, width) if self.distances is None else DisentangledAttention(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with."""
        heads, kv_heads, head = self.resolve_shape(width=width)
        return 2 * width * head * (heads + kv_heads)

    def params(self, *, width: int) -> int:
        heads, kv_heads, head = self.resolve_shape(width=width)
        outputs = {"q": heads * head, "k": kv_heads * head, "v": kv_heads * head, "out": width}
        count = self.count_weights(width=width) + sum(outputs[name] for name in self.bias_names)
        if self.distances is not None:
            count += sum(outputs[name] * (width + 1) for name in self.distances.projections)
        if self.norm is not None:
            count += sum(self.norm.params(width=self.get_norm_width(n, head)) for n in (heads, kv_heads))
        return count


class MultiHeadAttention(nn.Module):
    """q, k, v and out are separate modules with stable names; linear layers are fused into one product."""

    def __init__(self, spec: Attention, width: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = spec.resolve_shape(width=width)
        self.scale = self.head**-0.5 if spec.scale is None else spec.scale
        self.clip, self.dropout, self.window, self.rotary = spec.clip, spec.dropout, spec.window, spec.rotary
        self.out_dropout = Dropout(spec.out_dropout)
        self.q = nn.Linear(width, self.heads * self.head, bias="q" in spec.bias_names)
        self.k = nn.Linear(width, self.kv_heads * self.head, bias="k" in spec.bias_names)
        self.v = nn.Linear(width, self.kv_heads * self.head, bias="v" in spec.bias_names)
        self.out = nn.Linear(self.heads * self.head, width, bias="out" in spec.bias_names)
        self.q_norm, self.k_norm = (
            None if spec.norm is None else spec.norm.build(width=spec.get_norm_width(heads, self.head))
            for heads in (self.heads, self.kv_heads)
        )
        self.norms_heads = isinstance(spec.norm, PerHead)
        self.prefix: KVPrefix | None = None  # learned keys and values before each sequence

    def forward(
        self, x: Tensor, context: AttentionContext, source: Tensor | None = None, cache: LayerCache | None = None
    ) -> AttentionResult:
        """Attend within `x`, or from `x` to `source`; writes keys and values to `cache`, if given."""
        q, k, v = self.project(x, source)
        rotation = context.rotation if source is None else None
        if rotation is not None and (cache is not None or not can_backend_rotate(q, context, rotation)):
            q, k, rotation = rotate(q, rotation), rotate(k, rotation), None
        if cache is not None:
            cache.fill(k, v)
        attention, weights = self.attend_heads(q, k, v, context, rotation)
        return self.out_dropout(self.out(attention.flatten(1))), weights

    def attend_heads(
        self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, rotation: Rotation | None = None
    ) -> AttentionResult:
        """Attend from queries `[N, H, D]` to keys and values `[M, K, D]`, and to the learned ones, if there are any."""
        if self.prefix is not None:
            k, v = prepend_prefix(self.prefix, k, v, context.rows)
        dropout = self.dropout if self.training else 0.0
        return attend(q, k, v, context, scale=self.scale, dropout=dropout, rotation=rotation)

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
        split = x.reshape(x.shape[0], heads, self.head)
        if norm is None:
            return split
        x_normed: Tensor = norm(split) if self.norms_heads else norm(x)
        # NOTE: CUDA autocast runs norms in fp32, but the kernels need q, k and v of the same dtype.
        return x_normed.to(x.dtype).view_as(split)


class DisentangledAttention(MultiHeadAttention):
    """Attention layer; `position_k` and `position_q` project distances if these do not share k and q."""

    def __init__(self, spec: Attention, width: int) -> None:
        super().__init__(spec, width)
        assert spec.distances is not None
        self.terms = spec.distances.terms
        if spec.scale is None:
            self.scale = (self.head * (1 + len(self.terms))) ** -0.5
        names = spec.distances.projections
        self.position_k = nn.Linear(width, self.kv_heads * self.head) if "k" in names else None
        self.position_q = nn.Linear(width, self.heads * self.head) if "q" in names else None

    def attend_heads(
        self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, rotation: Rotation | None = None
    ) -> AttentionResult:
        """Attend with the scores of distances as a bias of each row."""
        if context.distances is None:
            raise UsageError("disentangled attention needs a stack with the position 'disentangled'")
        keys, queries = self._project_distances(context.distances)
        content, all_values = repeat_kv(q, k, v)
        if context.backend == "tiles":
            from pretune.nn.tiles import attend_tiles

            layout, dropout = context.blocks, self.dropout if self.training else 0.0
            distances = (keys, queries)
            out = attend_tiles(q, content, all_values, layout, distances=distances, scale=self.scale, dropout=dropout)
            return out, None
        if context.backend == "eager":  # the reference is exact
            exact = torch.promote_types(q.dtype, torch.float32)
            with torch.autocast(q.device.type, enabled=False):
                bias = self._compute_bias(q.to(exact), content.to(exact), keys, queries, context)
            return super().attend_heads(q, k, v, replace(context, bias=bias))
        bias = self._compute_bias(q, content, keys, queries, context).to(q.dtype)
        if context.mask is not None:
            bias = bias.masked_fill(~context.mask, float("-inf"))
        return super().attend_heads(q, k, v, replace(context, mask=bias))

    def _project_distances(self, distances: DistanceTable) -> tuple[Tensor | None, Tensor | None]:
        """Return keys and queries of the distances R - 1 down to -R `[2R, H, D]`."""
        vectors = apply_dropout(distances.vectors, distances.dropout if self.training else 0.0)

        def project(layer: nn.Module, heads: int, norm: nn.Module | None) -> Tensor:
            projections = self._split(layer(vectors), heads, norm).index_select(0, distances.index)
            return projections.repeat_interleave(self.heads // heads, dim=1) if heads < self.heads else projections

        keys = queries = None
        if "c2p" in self.terms:
            keys = project(self.position_k or self.k, self.kv_heads, self.k_norm)
        if "p2c" in self.terms:
            queries = project(self.position_q or self.q, self.heads, self.q_norm)
        return keys, queries

    def _compute_bias(
        self, q: Tensor, k: Tensor, keys: Tensor | None, queries: Tensor | None, context: AttentionContext
    ) -> Tensor:
        """Return the scaled scores of distances `[rows, H, R, R]`, with learned keys `[…, P + R]`: 0 for these.

        Scores of all 2R distances are one product per term; a view of it has those of each key (`shift_scores`).
        """
        bias: Tensor | None = None
        for content, vectors, is_key in ((q, keys, False), (k, queries, True)):
            if vectors is None:
                continue
            rows = content.view(context.rows, -1, self.heads, self.head).transpose(1, 2) * self.scale
            if is_key:  # the view of a key's row runs over queries, so that distances must rise from 1 - R
                vectors = vectors.flip(0).roll(-1, 0)
            scores = shift_scores(rows @ vectors.to(rows.dtype).permute(1, 2, 0))
            scores = scores.transpose(-1, -2) if is_key else scores
            bias = scores if bias is None else bias + scores
        assert bias is not None
        return F.pad(bias, (context.prefix_length, 0)) if context.prefix_length else bias


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
