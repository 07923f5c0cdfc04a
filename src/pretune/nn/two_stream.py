"""Two-stream self-attention (Yang et al., 2019): a stack that can predict tokens in any order of a text.

The *content* stream is an ordinary bidirectional encoder: where a batch has no `order`, it is all there is. With one
(`batch.order`: 0 for context, 1, 2, … for what is predicted, in turn), the content of a token sees the tokens of its
own rank and below, itself included. The *query* stream lives at the batch's targets alone, starts from one learned
vector instead of the token, and sees ranks strictly below its own: it knows where it stands and what came before in
that order, but not itself. Both streams have the same weights, and both read keys and values of the content.

    tokens   the   cat   sat   down        content of   sat   sees   the cat sat down
    order     0     2     3     1          query of     sat   sees   the cat     down

This is the paper's permutation mask, and where ranks of targets differ it equals `perm_mask[i, j] = order[j] > 0 and
order[j] >= order[i]` (1: hidden) with a `target_mapping` to the targets, as the reference writes it: there the content
stream sees itself whatever the mask says, and context (rank 0) is never hidden.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.nn.activations import Dropout
from pretune.nn.attention_mask import MaskSpec, build_context
from pretune.nn.block import Block, Norms
from pretune.nn.cache import KVCache
from pretune.nn.embeddings import Embed
from pretune.nn.feedforward import FeedForward
from pretune.nn.relative_attention import (
    QueryPositions,
    RelativeAttention,
    RelativeContext,
    StreamMask,
    encode_distances,
)
from pretune.nn.segment_memory import SegmentMemory
from pretune.nn.stack import OutputFlags, Stack, StackOutput


@spec
class TwoStreamBlock:
    """A layer that both streams go through."""

    attention: RelativeAttention
    feedforward: FeedForward
    norms: Norms
    dropout: float = 0.0  # of each sublayer's output

    cross: ClassVar[None] = None
    parallel: ClassVar[bool] = False

    def build(self, *, width: int) -> "TwoStreamLayer":
        return TwoStreamLayer(self, width)

    def params(self, *, width: int) -> int:
        norms = 2 * self.norms.params(width=width)
        return self.attention.params(width=width) + self.feedforward.params(width=width) + norms


@spec
class TwoStream:
    """`depth` layers: the tuple `blocks` is cycled over them. It stands where a `Stack` may stand."""

    depth: int
    blocks: tuple[TwoStreamBlock, ...]
    embed: Embed = Embed()  # its dropout is also that of the query vector and of the distances
    dropout: float = 0.0  # after the last layer

    # What it has none of, for those who ask every stack.
    position: ClassVar[None] = None
    causal: ClassVar[bool] = False
    share: ClassVar[None] = None
    norm: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.depth < 1 or not self.blocks:
            raise UsageError(f"depth {self.depth} must be at least 1, with at least one block")

    @property
    def layers(self) -> list[TwoStreamBlock]:
        """The block of every layer."""
        return [self.blocks[i % len(self.blocks)] for i in range(self.depth)]

    @property
    def layer_indices(self) -> list[int]:
        """Which of those each of the `depth` layers uses."""
        return list(range(self.depth))

    def build(self, *, width: int) -> "TwoStreamStack":
        return TwoStreamStack(self, width)

    def position_params(self, *, width: int) -> int:
        """Of the vector that every query starts from: all it knows is its position."""
        return width

    def params(self, *, width: int) -> int:
        """All weights but the token table."""
        count = self.embed.params(width=width) + self.position_params(width=width)
        return count + sum(block.params(width=width) for block in self.layers)


AnyStack = Stack | TwoStream
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
        """Content `[N, W]` and queries `[M, W]` after the layer, and the attention weights of each where asked for.

        `memory` `[rows, P, W]` are the states that the layer read in the segments before.
        """
        read = self.attention_norm.pre(x)
        keys = self.attention.compute_keys(read, context, None if memory is None else self.attention_norm.pre(memory))
        mixed, weights = self.attention(read, keys, context, stream_masks[0])
        if g is None or stream_masks[1] is None:
            return self._finish_layer(x, mixed), None, weights, None
        asked, seen = self.attention(self.attention_norm.pre(g), keys, context, stream_masks[1], query_positions)
        return self._finish_layer(x, mixed), self._finish_layer(g, asked), weights, seen

    def _finish_layer(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = self.attention_norm.add(x, self.dropout(self.attention_norm.out(mixed)))
        thought = self.feedforward(self.feedforward_norm.pre(x))
        return self.feedforward_norm.add(x, self.dropout(self.feedforward_norm.out(thought)))


class TwoStreamStack(nn.Module):
    """Layers are named by their number: `encoder.3.attention.q.weight`; `query` is what every query starts from."""

    def __init__(self, spec: TwoStream, width: int) -> None:
        super().__init__()
        self.spec, self.width = spec, width
        self.embed = spec.embed.build(width=width)
        self.query = Parameter(torch.zeros(1, width))
        for i, block in enumerate(spec.layers):
            self.add_module(str(i), block.build(width=width))
        self.position = self.norm = None  # as in a stack that has none
        self.residual_dtype: torch.dtype | None = None  # of the residual stream; None: as the embedding gives it
        self.dropout = Dropout(spec.dropout)

    def __getitem__(self, i: int) -> TwoStreamLayer:
        return self._modules[str(i)]  # type: ignore[return-value]

    def __iter__(self) -> Iterator[TwoStreamLayer]:
        """Every layer in the order it is applied."""
        return (self[i] for i in self.spec.layer_indices)

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
        """Token rows `[N, table]` of a batch to states: of the content, and at the targets of a batch with an `order`
        those of the queries. Hidden states and attention weights are likewise those of queries there. With `memory`
        the segments before are read as well, and this one is added to it.
        """
        if source is not None or cache is not None:
            raise UsageError("a two-stream stack reads one side, and nothing goes on from a cache of it")
        x = self.embed(x, None, batch.segments)
        x = x if self.residual_dtype is None else x.to(self.residual_dtype)
        kept = 0
        if memory is not None:
            memory.check(batch)
            kept = memory.tokens
        relations, reaches, places = (
            self._build_context(batch, flags, kept),
            build_stream_masks(batch, kept),
            _find_query_positions(batch),
        )
        g = None if places is None else self.embed.dropout(self.query.to(x.dtype).repeat(len(places.index), 1))
        hidden, attention = [_merge_streams(x, g, places)] if flags.hidden else [], []
        for i, layer in enumerate(self):
            before = None if memory is None else memory.layers[i]
            if memory is not None:
                memory.append(i, x, batch.rows)
            x, g, weights, seen = layer(x, g, relations, reaches, places, before)
            if flags.hidden:
                hidden.append(_merge_streams(x, g, places))
            if flags.attention:
                attention.append(_merge_weights(weights, seen, batch, places))
        states = self.dropout(_merge_streams(x, g, places))
        return StackOutput(
            states=states,
            hidden=(*hidden[:-1], states) if flags.hidden else None,
            attention=tuple(attention) if flags.attention else None,
        )

    @property
    def prefix_length(self) -> int:
        """Positions that learned keys take: none, for nothing here depends on where in the text it stands."""
        return 0

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the layers; the loop over them stays in Python."""
        for layer in self:
            layer.compile(*args, **options)

    def new_memory(self, length: int) -> SegmentMemory:
        """Return an empty memory of `length` tokens."""
        return SegmentMemory(self.spec.depth, length)

    def _build_context(self, batch: Batch, flags: OutputFlags, memory: int) -> RelativeContext:
        if flags.backend not in (None, "rows", "eager"):
            raise UsageError(f"attention_backend '{flags.backend}' cannot do two streams; leave it open, or use 'rows'")
        table = encode_distances(batch.length, self.width, batch.tokens.device, memory).to(self.query.dtype)
        apart = None
        if batch.segments is not None:
            segments = batch.segments.view(batch.rows, 1, -1)
            seen = F.pad(segments, (memory, 0))  # the memory is of segment 0, as in the reference
            apart = segments[..., :, None] != seen[..., None, :]
        told = flags.attention or flags.backend == "eager"
        return RelativeContext(
            rows=batch.rows, distances=self.embed.dropout(table), is_other_segment=apart, return_weights=told
        )


def build_stream_masks(batch: Batch, memory: int = 0) -> tuple[StreamMask, StreamMask | None]:
    """Whom content and queries may see; the `memory` before a row is seen by all of it."""
    mask = build_context(batch, batch, MaskSpec(causal=False), "eager", torch.float32).mask
    if batch.order is None:
        return StreamMask(mask=_pad_memory(mask, memory)), None
    order = batch.order.view(batch.rows, 1, -1)
    query, key = order[..., :, None], order[..., None, :]
    content, before = key <= query, key < query
    if mask is not None:
        content, before = content & mask, before & mask
    content, before = F.pad(content, (memory, 0), value=True), F.pad(before, (memory, 0), value=True)
    return StreamMask(mask=content), StreamMask(mask=before, has_keys=before.any(-1, keepdim=True))


def _pad_memory(mask: Tensor | None, memory: int) -> Tensor | None:
    return mask if mask is None or not memory else F.pad(mask, (memory, 0), value=True)


def _find_query_positions(batch: Batch) -> QueryPositions | None:
    """Where the queries stand: at the targets of a batch with an order."""
    if batch.order is None:
        return None
    if batch.targets is None:
        raise UsageError("a batch with an order needs targets: queries are made for them alone")
    index, count = batch.targets.index, batch.tokens.shape[0]
    return QueryPositions(
        index=index, write_index=index.masked_fill(batch.targets.labels == IGNORE_INDEX, count), count=count
    )


def _merge_streams(x: Tensor, g: Tensor | None, query_positions: QueryPositions | None) -> Tensor:
    return x if g is None or query_positions is None else query_positions.scatter(g, x)


def _merge_weights(
    weights: Tensor, query_weights: Tensor | None, batch: Batch, query_positions: QueryPositions | None
) -> Tensor:
    if query_weights is None or query_positions is None:
        return weights
    asks = query_positions.scatter(torch.ones_like(query_positions.index), torch.zeros_like(batch.tokens)).bool()
    return torch.where(asks.view(batch.rows, 1, -1, 1), query_weights, weights)
