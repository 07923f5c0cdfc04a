"""Two-stream self-attention (Yang et al., 2019): a stack that predicts tokens in any order.

The *content* stream is an ordinary bidirectional encoder; without `batch.order` it is the only stream. With an order
(rank 0 for context, 1, 2, … for targets), the content of a token attends to tokens of its own rank and below, itself
included. The *query* stream exists only at the batch's targets, starts from one learned vector instead of the token,
and attends to ranks strictly below its own: it has the position and the earlier tokens of that order, but not its own
token. Both streams have the same weights and attend to keys and values of the content.

    tokens   the   cat   sat   down        content of   sat   attends to   the cat sat down
    order     0     2     3     1          query of     sat   attends to   the cat     down

This is the paper's permutation mask. If ranks of targets differ, it equals `perm_mask[i, j] = order[j] > 0 and
order[j] >= order[i]` (1: hidden) with a `target_mapping` to the targets in the reference: there the content stream
always attends to itself, and context (rank 0) is never hidden.
"""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.core.config import Fraction, Ge, Le, NonEmpty, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.attention_mask import MaskSpec, build_context
from pretune.nn.block import Block, LayerStack, Norms
from pretune.nn.cache import KVCache, SegmentMemory
from pretune.nn.layers import Dropout, Embed, FeedForward
from pretune.nn.relative_attention import (
    QueryPositions,
    RelativeAttention,
    RelativeContext,
    StreamMask,
    encode_distances,
)
from pretune.nn.stack import MAX_LAYERS, OutputFlags, Stack, StackOutput


@spec
class TwoStreamBlock:
    """A layer of both streams."""

    attention: RelativeAttention
    feedforward: FeedForward
    norms: Norms
    dropout: Fraction = 0.0  # of each sublayer's output

    cross: ClassVar[None] = None
    parallel: ClassVar[bool] = False

    def build(self, *, width: int) -> "TwoStreamLayer":
        return TwoStreamLayer(self, width)

    def params(self, *, width: int) -> int:
        norms = sum(norms.params(width=width) for norms in self.list_norms())
        return self.attention.params(width=width) + self.feedforward.params(width=width) + norms

    def list_norms(self) -> list[Norms]:
        """Return the norms of each sublayer."""
        return [self.norms, self.norms]


@spec
class TwoStream:
    """`depth` layers; the tuple `blocks` is cycled over them. It can replace a `Stack`."""

    depth: Annotated[int, Ge(1), Le(MAX_LAYERS)]
    blocks: Annotated[tuple[TwoStreamBlock, ...], NonEmpty()]
    embed: Embed = Embed()  # its dropout also applies to the query vector and the distances
    dropout: Fraction = 0.0  # after the last layer

    # Attributes of `Stack` that it does not have.
    position: ClassVar[None] = None
    causal: ClassVar[bool] = False
    share: ClassVar[None] = None
    norm: ClassVar[None] = None
    conv: ClassVar[None] = None

    @property
    def layers(self) -> list[TwoStreamBlock]:
        """The block of every layer."""
        return [self.blocks[i % len(self.blocks)] for i in range(self.depth)]

    @property
    def layer_indices(self) -> list[int]:
        """Index into `layers` for each of the `depth` layers."""
        return list(range(self.depth))

    def build(self, *, width: int) -> "TwoStreamStack":
        return TwoStreamStack(self, width)

    def position_params(self, *, width: int) -> int:
        """Return the number of parameters of the initial query vector."""
        return width

    def params(self, *, width: int) -> int:
        """Return the number of parameters, without the token table."""
        count = self.embed.params(width=width) + self.position_params(width=width)
        return count + sum(block.params(width=width) for block in self.layers)


AttentionStack = Stack | TwoStream
AnyBlock = Block | TwoStreamBlock


class TwoStreamLayer(nn.Module):
    def __init__(self, spec: TwoStreamBlock, width: int) -> None:
        super().__init__()
        self.attention = spec.attention.build(width=width)
        self.attention_norm = spec.norms.build(width=width)
        self.feedforward = spec.feedforward.build(width=width)
        self.feedforward_norm = spec.norms.build(width=width)
        self.dropout = Dropout(spec.dropout)

    def forward(
        self,
        x: Tensor,
        g: Tensor | None,
        context: RelativeContext,
        stream_masks: tuple[StreamMask, StreamMask | None],
        query_positions: QueryPositions | None,
        memory: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Return content `[N, W]` and queries `[M, W]` after the layer, and the attention weights of each if requested.

        `memory` `[rows, P, W]` are the inputs of this layer in previous segments.
        """
        read = self.attention_norm.pre(x)
        keys = self.attention.compute_keys(read, context, None if memory is None else self.attention_norm.pre(memory))
        attention, weights = self.attention(read, keys, context, stream_masks[0])
        if g is None or stream_masks[1] is None:
            return self._finish_layer(x, attention), None, weights, None
        query_attention, query_weights = self.attention(
            self.attention_norm.pre(g), keys, context, stream_masks[1], query_positions
        )
        return self._finish_layer(x, attention), self._finish_layer(g, query_attention), weights, query_weights

    def _finish_layer(self, x: Tensor, attention: Tensor) -> Tensor:
        x = self.attention_norm.add(x, self.dropout(self.attention_norm.out(attention)))
        hidden = self.feedforward(self.feedforward_norm.pre(x))
        return self.feedforward_norm.add(x, self.dropout(self.feedforward_norm.out(hidden)))


class TwoStreamStack(LayerStack[TwoStreamLayer]):
    """Module of a two-stream stack; `query` is the initial query vector."""

    spec: TwoStream

    def __init__(self, spec: TwoStream, width: int) -> None:
        super().__init__()
        self.spec, self.width = spec, width
        self.embed = spec.embed.build(width=width)
        self.query = Parameter(torch.zeros(1, width))
        for i, block in enumerate(spec.layers):
            self.add_module(str(i), block.build(width=width))
        self.dropout = Dropout(spec.dropout)

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        source: Tensor | None = None,
        *,
        flags: OutputFlags = OutputFlags(),  # noqa: B008 (a frozen value)
        cache: KVCache | None = None,
        memory: SegmentMemory | None = None,
    ) -> StackOutput:
        """Return the states of token embeddings `[N, table]`: of the content, and at targets of a batch with an `order`
        those of the queries, as are hidden states and attention weights. `memory` holds the previous segments; this one
        is appended to it.
        """
        if source is not None or cache is not None:
            raise UsageError("a two-stream stack has no cross-attention and no cache")
        x = self.embed(x, None, batch.segments)
        x = x if self.residual_dtype is None else x.to(self.residual_dtype)
        memory_tokens = 0
        if memory is not None:
            memory.check(batch)
            memory_tokens = memory.tokens
        context = self._build_context(batch, flags, memory_tokens)
        stream_masks = build_stream_masks(batch, memory_tokens)
        query_positions, g = _find_query_positions(batch), None
        if query_positions is not None:
            g = self.embed.dropout(self.query.to(x.dtype).repeat(len(query_positions.index), 1))
        hidden, attention = [_merge_streams(x, g, query_positions)] if flags.hidden else [], []
        for i, layer in enumerate(self):
            memory_states = None if memory is None else memory.layers[i]
            if memory is not None:
                memory.append(i, x, batch.rows)
            x, g, weights, query_weights = layer(x, g, context, stream_masks, query_positions, memory_states)
            if flags.hidden:
                hidden.append(_merge_streams(x, g, query_positions))
            if flags.attention:
                attention.append(_merge_weights(weights, query_weights, batch, query_positions))
        states = self.dropout(_merge_streams(x, g, query_positions))
        return StackOutput(
            states=states,
            hidden=(*hidden[:-1], states) if flags.hidden else None,
            attention=tuple(attention) if flags.attention else None,
        )

    def new_memory(self, length: int) -> SegmentMemory:
        """Return an empty memory of `length` tokens."""
        return SegmentMemory(self.spec.depth, length)

    def _build_context(self, batch: Batch, flags: OutputFlags, memory: int) -> RelativeContext:
        if flags.backend not in (None, "rows", "eager"):
            raise UsageError(
                f"attention_backend '{flags.backend}' does not support two streams; unset it, or use 'rows'"
            )
        table = encode_distances(batch.length, self.width, batch.tokens.device, memory).to(self.query.dtype)
        is_other_segment = None
        if batch.segments is not None:
            segments = batch.segments.view(batch.rows, 1, -1)
            key_segments = F.pad(segments, (memory, 0))  # the memory has segment 0, as in the reference
            is_other_segment = segments[..., :, None] != key_segments[..., None, :]
        return_weights = flags.attention or flags.backend == "eager"
        return RelativeContext(
            rows=batch.rows,
            distances=self.embed.dropout(table),
            is_other_segment=is_other_segment,
            return_weights=return_weights,
        )


def build_stream_masks(batch: Batch, memory: int = 0) -> tuple[StreamMask, StreamMask | None]:
    """Return the masks of content and queries; the `memory` before a row is visible to all of it."""
    mask = build_context(batch, batch, MaskSpec(causal=False), "eager", torch.float32).mask
    if batch.order is None:
        return StreamMask(mask=_pad_memory(mask, memory)), None
    order = batch.order.view(batch.rows, 1, -1)
    query, key = order[..., :, None], order[..., None, :]
    content_mask, query_mask = key <= query, key < query
    if mask is not None:
        content_mask, query_mask = content_mask & mask, query_mask & mask
    content_mask, query_mask = F.pad(content_mask, (memory, 0), value=True), F.pad(query_mask, (memory, 0), value=True)
    return StreamMask(mask=content_mask), StreamMask(mask=query_mask, has_keys=query_mask.any(-1, keepdim=True))


def _pad_memory(mask: Tensor | None, memory: int) -> Tensor | None:
    return mask if mask is None or not memory else F.pad(mask, (memory, 0), value=True)


def _find_query_positions(batch: Batch) -> QueryPositions | None:
    """Return the positions of the queries: the targets of a batch with an order."""
    if batch.order is None:
        return None
    if batch.targets is None:
        raise UsageError("a batch with an order needs targets: the query stream exists only there")
    return QueryPositions.from_targets(batch.targets, batch.tokens.shape[0])


def _merge_streams(x: Tensor, g: Tensor | None, query_positions: QueryPositions | None) -> Tensor:
    return x if g is None or query_positions is None else query_positions.scatter(g, x)


def _merge_weights(
    weights: Tensor, query_weights: Tensor | None, batch: Batch, query_positions: QueryPositions | None
) -> Tensor:
    if query_weights is None or query_positions is None:
        return weights
    asks = query_positions.scatter(torch.ones_like(query_positions.index), torch.zeros_like(batch.tokens)).bool()
    return torch.where(asks.view(batch.rows, 1, -1, 1), query_weights, weights)
