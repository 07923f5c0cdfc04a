"""Disentangled attention (He et al., 2021): scores by content and by distance, each with its own projections.

A query q at distance d (query position minus key position) of a key k has the score

    q · k  +  q · kr(d)  +  k · qr(d)          content to content, content to position, position to content

where kr and qr are projections of the vector of d (`DistanceEmbedding` of `pretune.nn.positions`), divided by the
square root of the head width times the number of terms. Legend: N tokens, R row length, H heads, D head width.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.errors import UsageError
from pretune.nn.attention import Attention, MultiHeadAttention
from pretune.nn.attention_mask import AttentionContext
from pretune.nn.layers import dropout as apply_dropout
from pretune.nn.positions import DistanceTable
from pretune.nn.relative_attention import shift_scores


class DisentangledAttention(MultiHeadAttention):
    """Attention layer; `position_k` and `position_q` project distances if these do not share k and q."""

    def __init__(self, spec: Attention, width: int) -> None:
        super().__init__(spec, width)
        assert spec.distances is not None
        self.terms = spec.distances.terms
        if spec.scale is None:
            self.scale = (self.head * (1 + len(self.terms))) ** -0.5
        own_terms = () if spec.distances.shared else self.terms
        self.position_k = nn.Linear(width, width) if "c2p" in own_terms else None
        self.position_q = nn.Linear(width, width) if "p2c" in own_terms else None

    def attend_heads(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Attend with the scores of distances as a bias of each row."""
        if context.distances is None:
            raise UsageError("disentangled attention needs a stack with the position 'disentangled'")
        keys, queries = self._project_distances(context.distances)
        if context.backend == "tiles":
            from pretune.nn.distance_tiles import attend_distances

            dropout = self.dropout if self.training else 0.0
            return attend_distances(q, k, v, context.blocks, keys, queries, scale=self.scale, dropout=dropout), None
        if context.backend == "eager":  # the reference is exact
            exact = torch.promote_types(q.dtype, torch.float32)
            with torch.autocast(q.device.type, enabled=False):
                bias = self._compute_bias(q.to(exact), k.to(exact), keys, queries, context)
            return super().attend_heads(q, k, v, replace(context, bias=bias))
        bias = self._compute_bias(q, k, keys, queries, context).to(q.dtype)
        if context.mask is not None:
            bias = bias.masked_fill(~context.mask, float("-inf"))
        return super().attend_heads(q, k, v, replace(context, mask=bias))

    def _project_distances(self, distances: DistanceTable) -> tuple[Tensor | None, Tensor | None]:
        """Return keys and queries of the distances R - 1 down to -R `[2R, H, D]`."""
        vectors = apply_dropout(distances.vectors, distances.dropout if self.training else 0.0)

        def project(layer: nn.Module) -> Tensor:
            projections: Tensor = layer(vectors)
            return projections.index_select(0, distances.index).view(-1, self.heads, self.head)

        keys = queries = None
        if "c2p" in self.terms:
            keys = project(self.position_k or self.k)
        if "p2c" in self.terms:
            queries = project(self.position_q or self.q)
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
