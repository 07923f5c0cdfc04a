"""The attention backends: six ways to compute the same thing.

Each takes queries `[N, H, D]` and keys and values `[M, K, D]` (K divides H: grouped-query) and gives `[N, H, D]`, with
the weights `[rows, H, R, R]` where the backend can tell them, those of learned keys left out. Legend: N queries, M
keys, H heads, K key heads, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from pretune.nn.activations import dropout as dropped
from pretune.nn.attention_mask import Scope

Attended = tuple[Tensor, Tensor | None]


def attend(q: Tensor, k: Tensor, v: Tensor, scope: Scope, *, scale: float, dropout: float) -> Attended:
    """Compute attention with the backend the scope was made for."""
    return _TABLE[scope.backend](q, k, v, scope, scale, dropout)


def _rows(q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float) -> Attended:
    q, k, v = _by_row(q, k, v, scope.rows)
    if dropout and v.device.type == "cpu":
        return _spelled_out(q, k, v, scope.mask, scale, dropout), None
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=scope.mask, dropout_p=dropout, scale=scale)
    return _flat(out), None


def _spelled_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, p: float) -> Tensor:
    """What SDPA does on a CPU where probabilities are dropped, with our own dropout."""
    scores = (q * scale) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return _flat(dropped(scores.softmax(-1), p) @ v)


def _plain(q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float) -> Attended:
    q, k, v = _by_row(q, k, v, scope.rows)
    causal = scope.causal and scope.mask is None  # NOTE: of more keys than queries, torch means the first ones
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=scope.mask, is_causal=causal, dropout_p=dropout, scale=scale
    )
    return _flat(out), None


def _naive(q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float) -> Attended:
    dtype, exact = v.dtype, torch.promote_types(v.dtype, torch.float32)
    with torch.autocast(v.device.type, enabled=False):  # the reference is exact, whatever it is compared with
        return _naive_exact(*_by_row(q.to(exact), k.to(exact), v.to(exact), scope.rows), scope, scale, dropout, dtype)


def _naive_exact(
    q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float, dtype: torch.dtype
) -> Attended:
    scores = (q @ k.transpose(-1, -2)) * scale
    if scope.bias is not None:
        scores = scores + scope.bias
    if scope.mask is not None:
        scores = scores.masked_fill(~scope.mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    return _flat(dropped(weights, dropout) @ v).to(dtype), weights[..., scope.ahead :]


def _varlen(q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float) -> Attended:
    from pretune.nn.varlen import GROUPED, varlen

    assert scope.offsets is not None and not dropout, "varlen has no attention dropout; pick() never asks for it"
    if not GROUPED:
        k, v = _grown(q, k, v)
    out = varlen(q, k, v, scope.offsets, scope.lengths, causal=scope.causal, window=scope.window, scale=scale)
    return out, None


def _tiles(q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float) -> Attended:
    from pretune.nn.tiles import tiles

    where, causal, window = scope.blocks, scope.causal, scope.window
    return tiles(q, k, v, where, scope.bias, causal=causal, window=window, scale=scale, dropout=dropout), None


def _flex(q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float) -> Attended:
    assert not dropout, "flex has no attention dropout; pick() never asks for it"
    q, k, v = _by_row(q, k, v, scope.rows)
    bias, last, ahead, positions = scope.bias, scope.lengths[0] - 1, scope.ahead, scope.positions
    options = None if bias is None else _SMALL_TILES

    def score(value: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert bias is not None
        if positions is None:
            return value + bias[head, key - query + last]
        distance = key - ahead - torch.where(key < ahead, positions[row, query], query)
        return value + bias[head, distance + ahead + last]

    if q.is_cuda and not torch.compiler.is_compiling():
        run = _COMPILED.setdefault("flex", torch.compile(flex_attention))
    else:
        run = flex_attention
    out: Tensor = run(
        q, k, v, score_mod=None if bias is None else score, block_mask=scope.blocks, scale=scale, kernel_options=options
    )
    return _flat(out), None


# NOTE: a learned bias table keeps its gradient in shared memory; at head width 64 the default tiles do not fit then.
_SMALL_TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32}

_COMPILED: dict[str, Any] = {}  # flex is slow unless compiled; made on first use

_TABLE: dict[str, Callable[[Tensor, Tensor, Tensor, Scope, float, float], Attended]] = {
    "rows": _rows,
    "plain": _plain,
    "naive": _naive,
    "varlen": _varlen,
    "tiles": _tiles,
    "flex": _flex,
}


def _by_row(q: Tensor, k: Tensor, v: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """`[rows, H, R, D]` each. A mask with grouped-query falls to a slow kernel, so keys are given to every head."""
    k, v = _grown(q, k, v)
    q, k, v = (x.view(rows, -1, x.shape[1], x.shape[2]).transpose(1, 2) for x in (q, k, v))
    return q, k, v


def _flat(out: Tensor) -> Tensor:
    return out.transpose(1, 2).flatten(0, 1)


def _grown(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    times = q.shape[1] // k.shape[1]
    if times == 1:
        return k, v
    return k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)
