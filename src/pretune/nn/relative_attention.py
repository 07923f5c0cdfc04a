"""Attention by content, distance and segment (Dai et al., 2019; Yang et al., 2019).

A query q scores a key k at distance d (query position minus key position) with

    (q + content) · k  +  (q + position) · r(d)  +  (q + segment) · s[in another segment]

where r(d) is a projection of the sinusoidal encoding of d: nothing depends on where in the text the two stand, and
there is no longest sequence. Legend: N tokens, R row length, W width, H heads, D width of a head, M targets, P tokens
of a segment memory (`pretune.nn.segment_memory`), which are keys before those of the row; P is 0 without one.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.nn.prefix import KVPrefix, prepend_prefix


@spec
class RelativeAttention:
    """Heads of `width / heads`, no biases but the three vectors that are added to queries."""

    heads: int
    dropout: float = 0.0  # of the attention probabilities

    # What it has none of, for those who ask every attention.
    kv_heads: ClassVar[None] = None
    window: ClassVar[None] = None
    norm: ClassVar[None] = None
    clip: ClassVar[None] = None

    products: ClassVar[int] = 3  # per query and key: with the key, with their distance, and of weight and value

    def resolve_shape(self, *, width: int) -> tuple[int, int, int]:
        """Heads, key heads and the width of a head."""
        if width % self.heads or width % 2:
            raise UsageError(f"heads {self.heads} must divide width {width}, which must be even for its distances")
        return self.heads, self.heads, width // self.heads

    def build(self, *, width: int) -> "RelativeAttentionLayer":
        return RelativeAttentionLayer(self, width)

    def count_weights(self, *, width: int) -> int:
        """How many weights a token is multiplied with. Distances are projected once for a whole batch."""
        return 4 * width * width

    def params(self, *, width: int) -> int:
        return 5 * width * width + 5 * width


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeContext:
    """What all layers and both streams ask of a batch."""

    rows: int
    distances: Tensor  # [P + 2R, W] encodings of the distances P + R - 1, P + R - 2, …, -R
    is_other_segment: Tensor | None = None  # [rows, 1, R, P + R] query and key lie in different segments; None: none do
    return_weights: bool = False  # attention weights are to be returned


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMask:
    """Whom the queries of a stream may see."""

    mask: Tensor | None  # [rows, 1, R, P + R] True: may attend; None: everything in the row
    has_keys: Tensor | None = None  # [rows, 1, R, 1] whether there is anything to see; None: there always is


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPositions:
    """Where in a batch of N tokens the M queries of a stream of their own stand."""

    index: Tensor  # [M]
    write_index: Tensor  # [M] the same, but N for spare slots, so that they write where nobody reads
    count: int  # N

    def scatter(self, values: Tensor, states: Tensor) -> Tensor:
        """`over` `[N, …]` with the queries' values `[M, …]` in their places."""
        room = torch.cat((states, states[:1]))
        return room.index_copy(0, self.write_index, values.to(room.dtype))[: self.count]

    def gather(self, values: Tensor) -> Tensor:
        """What stands in the queries' places: `[M, …]` of `[N, …]`."""
        return values.index_select(0, self.index)


class RelativeAttentionLayer(nn.Module):
    """q, k, v and out as everywhere; `r` makes keys of distances."""

    def __init__(self, spec: RelativeAttention, width: int) -> None:
        super().__init__()
        self.heads, _, self.head = spec.resolve_shape(width=width)
        self.scale, self.dropout = self.head**-0.5, spec.dropout
        self.q, self.k, self.v, self.r, self.out = (nn.Linear(width, width, bias=False) for _ in range(5))
        self.content, self.position, self.segment = (Parameter(torch.zeros(self.heads, self.head)) for _ in range(3))
        self.segments = Parameter(torch.zeros(2, width))  # the same, another
        self.prefix: KVPrefix | None = (
            None  # learned keys and values before each sequence, at no distance from anything
        )

    def compute_keys(
        self, x: Tensor, context: RelativeContext, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values `[rows, H, P + R, D]` of the memory's `[rows, P, W]` and the tokens' states, and keys of the
        distances `[H, P + 2R, D]`.
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
        """What queries of states `[N, W]` gather, or with `places` queries `[M, W]` that stand there; and the weights.

        The few queries are laid out over the whole batch for the products alone: so no shape depends on how many of
        them a row has.
        """
        q = self.q(x)
        if query_positions is not None:
            q = query_positions.scatter(q, q.new_zeros(()).expand(query_positions.count, q.shape[1]))
        ahead = 0 if self.prefix is None else self.prefix.count
        mask = (
            F.pad(stream_mask.mask, (ahead, 0), value=True)
            if ahead and stream_mask.mask is not None
            else stream_mask.mask
        )
        mixed, weights = self._attend(self._split_rows(q, context), keys, context, mask)
        if stream_mask.has_keys is not None and not ahead:  # where there is nothing to see, nothing is gathered
            mixed = mixed * stream_mask.has_keys
            weights = None if weights is None else weights * stream_mask.has_keys
        mixed = mixed.transpose(1, 2).flatten(0, 1).flatten(1)
        return self.out(mixed if query_positions is None else query_positions.gather(mixed)), weights

    def _attend(
        self, q: Tensor, keys: tuple[Tensor, Tensor, Tensor], context: RelativeContext, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if not context.return_weights:
            return self._attend_fused(q, *keys, context, mask)
        exact = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            k, v, r = (key.to(exact) for key in keys)
            return self._attend_with_weights(q.to(exact), k, v, r, context, mask, q.dtype)

    def _attend_fused(
        self, q: Tensor, k: Tensor, v: Tensor, r: Tensor, context: RelativeContext, mask: Tensor | None
    ) -> tuple[Tensor, None]:
        bias = self._compute_bias(q, r, context)
        if mask is not None:  # NOTE: finite, for where there is nothing to see there must be no NaN either
            bias = bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
        dropout = self.dropout if self.training else 0.0
        q = q + self.content[:, None].to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=self.scale), None

    def _attend_with_weights(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        r: Tensor,
        context: RelativeContext,
        mask: Tensor | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """The same in plain products, which tell the weights."""
        scores = (q + self.content[:, None].to(q.dtype)) @ k.transpose(-1, -2) * self.scale
        scores = scores + self._compute_bias(q, r, context)
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        text = weights[..., k.shape[-2] - q.shape[-2] :]
        return (F.dropout(weights, self.dropout, self.training) @ v).to(dtype), text

    def _compute_bias(self, q: Tensor, r: Tensor, context: RelativeContext) -> Tensor:
        """What distances and segments add to the scores `[rows, H, R, P + R]`; of learned keys, which come first, 0."""
        bias = shift_scores((q + self.position[:, None].to(q.dtype)) @ r.transpose(-1, -2))
        if context.is_other_segment is not None:
            alike, other = self.segments.to(q.dtype).view(2, self.heads, self.head, 1).unbind()
            asked = q + self.segment[:, None].to(q.dtype)
            bias = bias + torch.where(context.is_other_segment, asked @ other, asked @ alike)
        out: Tensor = bias * self.scale
        return out if self.prefix is None else F.pad(out, (self.prefix.count, 0))

    def _split_rows(self, x: Tensor, context: RelativeContext) -> Tensor:
        return x.view(context.rows, -1, self.heads, self.head).transpose(1, 2)


def shift_scores(scores: Tensor) -> Tensor:
    """Scores of queries and L distances `[…, R, L]`, from L - R - 1 downwards, as those of keys `[…, R, L - R]`.

    Query i finds key j at the distance L - 2R + i - j, which stands in column j - i + R - 1: each query starts one
    column before the last one did, so that reading rows of L - 1 instead of L lines them up.
    """
    R, L = scores.shape[-2:]
    flat = scores.flatten(-2)[..., R - 1 : R - 1 + R * (L - 1)]
    return flat.view(*scores.shape[:-2], R, L - 1)[..., : L - R]


def encode_distances(length: int, width: int, device: torch.device, memory: int = 0) -> Tensor:
    """Sines, then cosines, of the distances memory + length - 1 down to -length: `[P + 2R, width]`, in fp32."""
    distance = torch.arange(memory + length - 1, -length - 1, -1, device=device, dtype=torch.float32)
    even = torch.arange(0, width, 2, device=device, dtype=torch.float32)
    angle = distance[:, None] * torch.exp(even * (-math.log(10000.0) / width))
    return torch.cat((angle.sin(), angle.cos()), dim=-1)
