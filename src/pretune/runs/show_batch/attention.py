"""Attention masks of a batch of one sequence, built by the models' own functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretune.core.types import IGNORE_INDEX, Batch
from pretune.models.bidirectional_lm import reverse_sequences
from pretune.nn.attention_mask import MaskSpec, build_context
from pretune.nn.two_stream import build_stream_masks
from pretune.objectives.base import ModelShape
from pretune.runs.show_batch.types import AttentionMap

TokenFormatter = Callable[[Tensor], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _AttentionMask:
    """Mask with the tokens of its queries [q] and keys [k], and the positions of the queries."""

    name: str
    mask: Tensor  # [q, k]
    queries: Tensor
    keys: Tensor
    places: Sequence[int] | None = None
    cross: bool = False


def build_attention_maps(batch: Batch, shape: ModelShape, formatter: TokenFormatter) -> tuple[AttentionMap, ...]:
    """Return the attention masks of a model of this shape."""
    return tuple(_format_mask(mask, formatter) for mask in _BY_SHAPE[shape](batch))


def _build_encoder_masks(batch: Batch) -> list[_AttentionMask]:
    return [_build_self_mask("encoder", batch, causal=False)]


def _build_decoder_masks(batch: Batch) -> list[_AttentionMask]:
    return [_build_self_mask("decoder", batch, causal=True)]


def _build_encoder_decoder_masks(batch: Batch) -> list[_AttentionMask]:
    assert batch.source is not None
    cross = _AttentionMask(
        "decoder to encoder", _build_mask(batch, batch.source), batch.tokens, batch.source.tokens, cross=True
    )
    return [
        _build_self_mask("encoder", batch.source, causal=False),
        _build_self_mask("decoder", batch, causal=True),
        cross,
    ]


def _build_two_way_masks(batch: Batch) -> list[_AttentionMask]:
    reversed_batch, index = reverse_sequences(batch)
    backward = _build_mask(reversed_batch, reversed_batch, causal=True)[index][:, index]
    return [
        _build_self_mask("forward stack", batch, causal=True),
        _AttentionMask("backward stack", backward, batch.tokens, batch.tokens),
    ]


def _build_two_stream_masks(batch: Batch) -> list[_AttentionMask]:
    content, query = build_stream_masks(batch)
    masks = [_AttentionMask("content stream", _expand_mask(content.mask, batch, batch), batch.tokens, batch.tokens)]
    if query is not None and batch.targets is not None:
        target_index = batch.targets.index[batch.targets.labels != IGNORE_INDEX]
        mask = _expand_mask(query.mask, batch, batch)[target_index]
        masks.append(
            _AttentionMask("query stream", mask, batch.tokens[target_index], batch.tokens, target_index.tolist())
        )
    return masks


_BY_SHAPE: dict[ModelShape, Callable[[Batch], list[_AttentionMask]]] = {
    "encoder": _build_encoder_masks,
    "decoder": _build_decoder_masks,
    "encoder-decoder": _build_encoder_decoder_masks,
    "two-way": _build_two_way_masks,
    "generator-discriminator": lambda batch: [_build_self_mask("generator and discriminator", batch, causal=False)],
    "two-stream": _build_two_stream_masks,
}


def _build_self_mask(name: str, batch: Batch, *, causal: bool) -> _AttentionMask:
    return _AttentionMask(name, _build_mask(batch, batch, causal=causal), batch.tokens, batch.tokens)


def _build_mask(queries: Batch, keys: Batch, *, causal: bool = False) -> Tensor:
    return _expand_mask(
        build_context(queries, keys, MaskSpec(causal=causal), "eager", torch.float32).mask, queries, keys
    )


def _expand_mask(mask: Tensor | None, queries: Batch, keys: Batch) -> Tensor:
    """Expand to [q, k]; None masks nothing."""
    size = (len(queries.tokens), len(keys.tokens))
    return torch.ones(size, dtype=torch.bool) if mask is None else mask.expand(1, 1, *size)[0, 0]


def _format_mask(mask: _AttentionMask, formatter: TokenFormatter) -> AttentionMap:
    queries = formatter(mask.queries)
    return AttentionMap(
        name=mask.name,
        queries=queries,
        places=tuple(range(len(queries)) if mask.places is None else mask.places),
        keys=formatter(mask.keys),
        mask=tuple(tuple(row) for row in mask.mask.tolist()),
        cross=mask.cross,
    )
