"""Attention by content, distance and segment (Dai et al., 2019; Yang et al., 2019).

A query q scores a key k at distance d (query position minus key position) with

    (q + content) · k  +  (q + position) · r(d)  +  (q + segment) · s[in another segment]

where r(d) is a projection of the sinusoidal encoding of d: scores depend on distances only, and there is no maximum
length. Legend: N tokens, R row length, W width, H heads, D head width, M targets, P tokens of a segment memory
(`pretune.nn.cache`), which are keys before those of the row; P is 0 without one.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.core.config import Fraction, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Targets
from pretune.nn.cache import KVPrefix, prepend_prefix


@spec
class RelativeAttention:
    """Heads of width `width / heads`; no biases except three vectors that are added to queries."""

    heads: Positive[int]
    dropout: Fraction = 0.0  # of the attention probabilities

    # Attributes of `Attention` that it does not have.
    kv_heads: ClassVar[None] = None
    window: ClassVar[None] = None
    norm: ClassVar[None] = None
    clip: ClassVar[None] = None
    rotary: ClassVar[None] = None
    distances: ClassVar[None] = None  # terms of DeBERTa
    out_dropout: ClassVar[float] = 0.0

    products: ClassVar[int] = 3  # products per query and key: key, distance, and weight with value

    def resolve_shape(self, *, width: int) -> tuple[int, int, int]:
        """Return heads, key-value heads and head width."""
        if width % self.heads or width % 2:
            raise UsageError(f"heads {self.heads} must divide width {width}, and the width must be even")
        return self.heads, self.heads, width // self.heads

    def build(self, *, width: int) -> "RelativeAttentionLayer":
        return RelativeAttentionLayer(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with; distances are projected once per batch."""
        return 4 * width * width

    def params(self, *, width: int) -> int:
        return 5 * width * width + 5 * width


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeContext:
    """Inputs that depend on the batch only, shared by all layers and both streams."""

    rows: int
    distances: Tensor  # [P + 2R, W] encodings of the distances P + R - 1, P + R - 2, …, -R
    is_other_segment: Tensor | None = None  # [rows, 1, R, P + R] query and key in different segments; None: never
    return_weights: bool = False  # return attention weights


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMask:
    """Attention mask of a stream."""

    mask: Tensor | None  # [rows, 1, R, P + R] True: may attend; None: the whole row
    has_keys: Tensor | None = None  # [rows, 1, R, 1] True: a key is visible; None: always


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPositions:
    """Positions of M queries in a batch of N tokens: the targets of a query stream or of a mask decoder."""

    index: Tensor  # [M]
    write_index: Tensor  # [M] the same, but N for spare slots, which are dropped
    count: int  # N

    @classmethod
    def from_targets(cls, targets: Targets, count: int) -> "QueryPositions":
        """Return the positions of the targets of a batch of `count` tokens."""
        index, is_spare = targets.index, targets.labels == IGNORE_INDEX
        return cls(index=index, write_index=index.masked_fill(is_spare, count), count=count)

    def scatter(self, values: Tensor, states: Tensor) -> Tensor:
        """Return `states` `[N, …]` with `values` `[M, …]` at the queries' positions."""
        room = torch.cat((states, states[:1]))
        return room.index_copy(0, self.write_index, values.to(room.dtype))[: self.count]

    def gather(self, values: Tensor) -> Tensor:
        """Return the values `[M, …]` at the queries' positions of `[N, …]`."""
        return values.index_select(0, self.index)


class RelativeAttentionLayer(nn.Module):
    """Relative attention: q, k, v and out as in `MultiHeadAttention`; `r` projects distances."""

    def __init__(self, spec: RelativeAttention, width: int) -> None:
        super().__init__()
        self.heads, _, self.head = spec.resolve_shape(width=width)
        self.scale, self.dropout = self.head**-0.5, spec.dropout
        self.q, self.k, self.v, self.r, self.out = (nn.Linear(width, width, bias=False) for _ in range(5))
        self.content, self.position, self.segment = (Parameter(torch.zeros(self.heads, self.head)) for _ in range(3))
        self.segments = Parameter(torch.zeros(2, width))  # the same, another
        self.prefix: KVPrefix | None = None  # learned keys and values before each sequence, without distances

    def compute_keys(
        self, x: Tensor, context: RelativeContext, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys and values `[rows, H, P + R, D]` of memory `[rows, P, W]` and tokens, and keys of the distances
        `[H, P + 2R, D]`.
        """
        if memory is not None:
            x = torch.cat((memory.to(x.dtype), x.view(context.rows, -1, x.shape[-1])), dim=1).flatten(0, 1)
        distances = self.r(context.distances).view(-1, self.heads, self.head).transpose(0, 1)
        k, v = (part(x).view(-1, self.heads, self.head) for part in (self.k, self.v))
        if self.prefix is not None:
            k, v = prepend_prefix(self.prefix, k, v, context.rows)
        return self._split_rows(k, context), self._split_rows(v, context), distances

    def forward(
        self,
        x: Tensor,
        keys: tuple[Tensor, Tensor, Tensor],
        context: RelativeContext,
        stream_mask: StreamMask,
        query_positions: QueryPositions | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention output of states `[N, W]`, or of queries `[M, W]` at `query_positions`, and the weights.

        The M queries are scattered over the whole batch for the products, so that no shape depends on their number per
        row.
        """
        q = self.q(x)
        if query_positions is not None:
            q = query_positions.scatter(q, q.new_zeros(()).expand(query_positions.count, q.shape[1]))
        mask, prefix_length = stream_mask.mask, 0 if self.prefix is None else self.prefix.count
        if prefix_length and mask is not None:
            mask = F.pad(mask, (prefix_length, 0), value=True)
        attention, weights = self._attend(self._split_rows(q, context), keys, context, mask)
        if stream_mask.has_keys is not None and not prefix_length:  # queries without keys have output 0
            attention = attention * stream_mask.has_keys
            weights = None if weights is None else weights * stream_mask.has_keys
        attention = attention.transpose(1, 2).flatten(0, 1).flatten(1)
        return self.out(attention if query_positions is None else query_positions.gather(attention)), weights

    def _attend(
        self, q: Tensor, keys: tuple[Tensor, Tensor, Tensor], context: RelativeContext, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        k, v, r = keys
        if not context.return_weights:
            bias = self._compute_bias(q, r, context)
            if mask is not None:  # NOTE: finite, so that queries without keys give no NaN
                bias = bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
            dropout = self.dropout if self.training else 0.0
            q = q + self.content[:, None].to(q.dtype)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=self.scale), None
        dtype, exact = q.dtype, torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):  # the reference is exact
            q, k, v, r = (part.to(exact) for part in (q, k, v, r))
            scores = (q + self.content[:, None].to(exact)) @ k.transpose(-1, -2) * self.scale
            scores = scores + self._compute_bias(q, r, context)
            if mask is not None:
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            weights = scores.softmax(-1)
            text = weights[..., k.shape[-2] - q.shape[-2] :]
            return (F.dropout(weights, self.dropout, self.training) @ v).to(dtype), text

    def _compute_bias(self, q: Tensor, r: Tensor, context: RelativeContext) -> Tensor:
        """Return the bias of distances and segments `[rows, H, R, P + R]`; 0 for learned keys, which come first."""
        bias = shift_scores((q + self.position[:, None].to(q.dtype)) @ r.transpose(-1, -2))
        if context.is_other_segment is not None:
            same, different = self.segments.to(q.dtype).view(2, self.heads, self.head, 1).unbind()
            queries = q + self.segment[:, None].to(q.dtype)
            bias = bias + torch.where(context.is_other_segment, queries @ different, queries @ same)
        out: Tensor = bias * self.scale
        return out if self.prefix is None else F.pad(out, (self.prefix.count, 0))

    def _split_rows(self, x: Tensor, context: RelativeContext) -> Tensor:
        return x.view(context.rows, -1, self.heads, self.head).transpose(1, 2)


def shift_scores(scores: Tensor) -> Tensor:
    """Convert scores of L distances `[…, R, L]`, from L - R - 1 downwards, to scores of keys `[…, R, L - R]`.

    Key j of query i is at distance L - 2R + i - j, in column j - i + R - 1: each query starts one column before the
    previous one, so that a view with rows of L - 1 instead of L aligns them.
    """
    R, L = scores.shape[-2:]
    flat = scores.flatten(-2)[..., R - 1 : R - 1 + R * (L - 1)]
    return flat.view(*scores.shape[:-2], R, L - 1)[..., : L - R]


def encode_distances(length: int, width: int, device: torch.device, memory: int = 0) -> Tensor:
    """Return sines, then cosines, of the distances P + R - 1 down to -R: `[P + 2R, width]`, in fp32."""
    distance = torch.arange(memory + length - 1, -length - 1, -1, device=device, dtype=torch.float32)
    channels = torch.arange(0, width, 2, device=device, dtype=torch.float32)
    angle = distance[:, None] * torch.exp(channels * (-math.log(10000.0) / width))
    return torch.cat((angle.sin(), angle.cos()), dim=-1)
