"""Backends of attention: six implementations of the same function.

A backend takes queries `[N, H, D]`, keys and values `[M, K, D]` (K divides H: grouped-query) and returns `[N, H, D]`,
with the weights `[rows, H, R, R]` (without learned keys) if it has them. Legend: N queries, M keys, H heads, K
key-value heads, D head width.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from pretune.nn.attention_mask import AttentionContext
from pretune.nn.layers import dropout as apply_dropout
from pretune.nn.positions import Rotation

AttentionResult = tuple[Tensor, Tensor | None]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: AttentionContext,
    *,
    scale: float,
    dropout: float,
    rotation: Rotation | None = None,
) -> AttentionResult:
    """Compute attention with the backend of the context; `rotation` is given if `can_backend_rotate` is true."""
    if rotation is not None:
        return _attend_tiles(q, k, v, context, scale, dropout, rotation)
    return _TABLE[context.backend](q, k, v, context, scale, dropout)


def can_backend_rotate(q: Tensor, context: AttentionContext, rotation: Rotation) -> bool:
    """Return True if the backend rotates queries and keys itself, faster than compiled code does."""
    if context.backend != "tiles" or context.distances is not None:
        return False
    from pretune.nn.tiles import can_rotate

    return can_rotate(q, rotation[0].shape[-1])


def _attend_rows(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float
) -> AttentionResult:
    q, k, v = _split_rows(q, k, v, context.rows)
    is_masked = context.backend == "rows"
    if is_masked and dropout and v.device.type == "cpu":
        return _attend_with_dropout(q, k, v, context.mask, scale, dropout), None
    # NOTE: with more keys than queries, torch aligns the first ones.
    causal = not is_masked and context.causal and context.mask is None
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=context.mask, is_causal=causal, dropout_p=dropout, scale=scale
    )
    return _flatten_rows(out), None


def _attend_with_dropout(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, p: float) -> Tensor:
    """Compute SDPA with attention dropout on a CPU, with the fast dropout of `pretune.nn.layers`."""
    scores = (q * scale) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return _flatten_rows(apply_dropout(scores.softmax(-1), p) @ v)


def _attend_eager(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float
) -> AttentionResult:
    exact = torch.promote_types(v.dtype, torch.float32)
    with torch.autocast(v.device.type, enabled=False):  # the reference is exact
        queries, keys, values = _split_rows(q.to(exact), k.to(exact), v.to(exact), context.rows)
        scores = (queries @ keys.transpose(-1, -2)) * scale
        if context.bias is not None:
            scores = scores + context.bias
        if context.mask is not None:
            scores = scores.masked_fill(~context.mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        output = _flatten_rows(apply_dropout(weights, dropout) @ values).to(v.dtype)
        return output, (scores if context.scores else weights)[..., context.prefix_length :]


def _attend_varlen(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float
) -> AttentionResult:
    from pretune.nn.varlen import SUPPORTS_GQA, attend_varlen

    assert context.offsets is not None and not dropout, (
        "varlen has no attention dropout; choose_backend never selects it"
    )
    if not SUPPORTS_GQA:
        k, v = repeat_kv(q, k, v)
    out = attend_varlen(
        q, k, v, context.offsets, context.lengths, causal=context.causal, window=context.window, scale=scale
    )
    return out, None


def _attend_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: AttentionContext,
    scale: float,
    dropout: float,
    rotation: Rotation | None = None,
) -> AttentionResult:
    from pretune.nn.tiles import attend_tiles

    layout, causal, window = context.blocks, context.causal, context.window
    tables = rotation or (None, None)
    out = attend_tiles(
        q, k, v, layout, context.bias, rotation=tables, causal=causal, window=window, scale=scale, dropout=dropout
    )
    return out, None


def _attend_flex(
    q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, scale: float, dropout: float
) -> AttentionResult:
    assert not dropout, "flex has no attention dropout; choose_backend never selects it"
    q, k, v = _split_rows(q, k, v, context.rows)
    bias, prefix_length, positions = context.bias, context.prefix_length, context.positions
    last = context.lengths[0] - 1

    def score(value: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert bias is not None
        if positions is None:
            return value + bias[head, key - query + last]
        distance = key - prefix_length - torch.where(key < prefix_length, positions[row, query], query)
        return value + bias[head, distance + prefix_length + last]

    run: Any = _compile_flex() if q.is_cuda and not torch.compiler.is_compiling() else flex_attention
    score_options = {} if bias is None else {"score_mod": score, "kernel_options": _SMALL_TILES}
    out: Tensor = run(q, k, v, block_mask=context.blocks, scale=scale, **score_options)
    return _flatten_rows(out), None


# NOTE: the gradient of a learned bias table is in shared memory; at head width 64 the default tiles do not fit.
_SMALL_TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32}


@cache
def _compile_flex() -> Callable[..., Any]:
    """Return flex attention compiled; it is slow otherwise."""
    return torch.compile(flex_attention)


_TABLE: dict[str, Callable[[Tensor, Tensor, Tensor, AttentionContext, float, float], AttentionResult]] = {
    "rows": _attend_rows,
    "sdpa": _attend_rows,
    "eager": _attend_eager,
    "varlen": _attend_varlen,
    "tiles": _attend_tiles,
    "flex": _attend_flex,
}


def _split_rows(q: Tensor, k: Tensor, v: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Reshape to `[rows, H, R, D]`. Keys are repeated for every head: SDPA is slow with grouped queries and a mask."""
    k, v = repeat_kv(q, k, v)
    q, k, v = (x.view(rows, -1, x.shape[1], x.shape[2]).transpose(1, 2) for x in (q, k, v))
    return q, k, v


def _flatten_rows(out: Tensor) -> Tensor:
    return out.transpose(1, 2).flatten(0, 1)


def repeat_kv(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat keys and values for every head of the queries."""
    times = q.shape[1] // k.shape[1]
    if times == 1:
        return k, v
    return k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)
