"""The attention backends: five ways to compute the same thing.

Each takes queries `[N, H, D]` and keys and values `[M, K, D]` (K divides H: grouped-query) and gives `[N, H, D]`, with
the weights `[rows, H, R, R]` where the backend can tell them. Legend: N queries, M keys, H heads, K key heads, D width.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.nn.scope import Scope

Attended = tuple[Tensor, Tensor | None]


def attend(q: Tensor, k: Tensor, v: Tensor, scope: Scope, *, scale: float, dropout: float) -> Attended:
    """Compute attention with the backend the scope was made for."""
    return _TABLE[scope.backend](q, k, v, scope, scale, dropout)


def _rows(q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float) -> Attended:
    q, k, v = _by_row(q, k, v, scope.rows)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=scope.mask, dropout_p=dropout, scale=scale)
    return _flat(out), None


def _plain(q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float) -> Attended:
    q, k, v = _by_row(q, k, v, scope.rows)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=scope.causal, dropout_p=dropout, scale=scale)
    return _flat(out), None


def _naive(q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float) -> Attended:
    q, k, v = _by_row(q, k, v, scope.rows)
    scores = (q @ k.transpose(-1, -2)) * scale
    if scope.bias is not None:
        scores = scores + scope.bias
    if scope.mask is not None:
        scores = scores.masked_fill(~scope.mask, torch.finfo(scores.dtype).min)
    weights = scores.float().softmax(-1).to(v.dtype)
    return _flat(F.dropout(weights, dropout) @ v), weights


def _varlen(q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float) -> Attended:
    assert scope.offsets is not None and not dropout, "varlen has no attention dropout; pick() never asks for it"
    reach = -1 if scope.window is None else scope.window - 1
    window = (reach, 0 if scope.causal else reach)
    if "enable_gqa" not in _varlen_options():
        k, v = _grown(q, k, v)
    extra: dict[str, Any] = {}
    if "enable_gqa" in _varlen_options() and k.shape[1] != q.shape[1]:
        extra["enable_gqa"] = True
    if "window_size" in _varlen_options():
        extra["window_size"] = window
    else:
        extra["is_causal"] = scope.causal
    out = _varlen_attn()(q, k, v, *scope.offsets, *scope.lengths, scale=scale, **extra)
    return out, None


def _flex(q: Tensor, k: Tensor, v: Tensor, scope: Scope, scale: float, dropout: float) -> Attended:
    assert not dropout, "flex has no attention dropout; pick() never asks for it"
    q, k, v = _by_row(q, k, v, scope.rows)
    bias, last = scope.bias, scope.lengths[0] - 1
    options = None if bias is None else _SMALL_TILES

    def score(value: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert bias is not None
        return value + bias[head, key - query + last]

    run = _flex_attention(compiled=q.is_cuda and not torch.compiler.is_compiling())
    out = run(
        q, k, v, score_mod=None if bias is None else score, block_mask=scope.blocks, scale=scale, kernel_options=options
    )
    return _flat(out), None


# NOTE: a learned bias table keeps its gradient in shared memory; at head width 64 the default tiles do not fit then.
_SMALL_TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32}

_TABLE: dict[str, Callable[[Tensor, Tensor, Tensor, Scope, float, float], Attended]] = {
    "rows": _rows,
    "plain": _plain,
    "naive": _naive,
    "varlen": _varlen,
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


@cache
def _varlen_attn() -> Callable[..., Tensor]:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn  # type: ignore[return-value]


@cache
def _varlen_options() -> frozenset[str]:
    """Its keywords, which differ between torch releases."""
    return frozenset(inspect.signature(_varlen_attn()).parameters)


@cache
def _flex_attention(*, compiled: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention  # type: ignore[return-value]
