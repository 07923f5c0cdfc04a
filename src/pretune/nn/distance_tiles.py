"""Tiled disentangled attention over packed rows, for CUDA: no matrix of scores is saved, dropout included.

Tiles between sequences are skipped, as in `pretune.nn.tiles`; sums have a fixed order, so that results are
deterministic. Legend: N tokens, H heads, D head width, R row length.
"""

from typing import Any

import torch
from torch import Tensor

from pretune.nn import distance_kernels as kernels
from pretune.nn.kernels import compute_deltas
from pretune.nn.tiles import (
    MAX_SCORE_BYTES,
    SPLITS,
    TileLayout,
    compute_constants,
    find_spans,
    get_strides,
    round_up,
)

BLOCK = 64
"""Queries and keys of a tile."""
FORWARD_OPTIONS = {"num_warps": 8, "num_stages": 2}
BACKWARD_OPTIONS = {"num_warps": 8, "num_stages": 1}


def attend_distances(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: TileLayout,
    keys: Tensor | None,
    queries: Tensor | None,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Attend from queries to keys and values `[N, H, D]`, with scores of distances.

    `keys` and `queries` `[2R, H, D]` are those of the distances R - 1 down to -R; None leaves a term out.
    """
    seed = torch.randint(0, 2**31 - 1, (2,), device=q.device, dtype=torch.int32) if dropout else None
    spans = find_spans(layout.q_sequence, BLOCK)
    keys, queries = (None if part is None else part.contiguous() for part in (keys, queries))
    out: Tensor = _attend(q, k, v, keys, queries, layout.q_sequence, spans, seed, scale, dropout)[0]
    return out


@torch.library.custom_op("pretune::distance_tiles", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor | None, queries: Tensor | None, sequence: Tensor, spans: Tensor,
    seed: Tensor | None, scale: float, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    (rows, length), (_, heads, width) = sequence.shape, q.shape
    out = q.new_empty(q.shape)
    norm = q.new_empty((rows, heads, length), dtype=torch.float32)
    blocks = spans.shape[1]
    kernels.forward[(blocks * rows * heads,)](
        q, k, v, q if keys is None else keys, q if queries is None else queries, out, norm, sequence, spans,
        sequence if seed is None else seed, *get_strides(q, k, v), *compute_constants(scale, dropout), heads, length,
        blocks, D=width, DP=round_up(width), BM=BLOCK, BN=BLOCK, DROP=dropout > 0,
        C2P=keys is not None, P2C=queries is not None, **FORWARD_OPTIONS,
    )  # fmt: skip
    return out, norm


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, keys: Any, queries: Any, sequence: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    shape = (sequence.shape[0], q.shape[1], sequence.shape[1])
    return q.new_empty(q.shape), q.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("pretune::distance_tiles_backward", mutates_args=())
def _compute_gradients(
    g: Tensor,
    states: list[Tensor],
    keys: Tensor | None,
    queries: Tensor | None,
    sequence: Tensor,
    spans: Tensor,
    seed: Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and of keys and queries of the distances.

    `states` are q, k, v and both outputs of the forward pass.
    """
    q, k, v, out, norm = states
    (rows, length), (_, heads, width), blocks = sequence.shape, q.shape, spans.shape[1]
    dq, dk, dv = (q.new_empty(q.shape) for _ in range(3))
    sizes: dict[str, Any] = {"D": width, "DP": round_up(width), "BM": BLOCK}
    terms: dict[str, Any] = {"C2P": keys is not None, "P2C": queries is not None}
    log, *dropout_constants = compute_constants(scale, dropout)
    PK, PQ = q if keys is None else keys, q if queries is None else queries
    delta = torch.empty_like(norm)
    compute_deltas[(blocks * rows * heads,)](out, g, delta, heads, length, blocks, **sizes)
    step = max(min(MAX_SCORE_BYTES // (heads * length * length * q.itemsize), rows), 1)
    scores = q.new_empty((step * heads, length, length))
    diagonals = 2 * blocks - 1
    shape = (SPLITS, heads, diagonals, 2 * BLOCK, width)
    dpk, dpq = (q.new_zeros(shape if part is not None else (0,), dtype=torch.float32) for part in (keys, queries))
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        programs = (blocks * (end - begin) * heads,)
        kernels.compute_key_gradients[programs](
            q, k, v, PK, PQ, g, norm, delta, sequence, spans, sequence if seed is None else seed, dk, dv, scores,
            *get_strides(q, k, v), log, scale, *dropout_constants, heads, length, begin, blocks,
            BN=BLOCK, DROP=dropout > 0, **sizes, **terms, **BACKWARD_OPTIONS,
        )  # fmt: skip
        kernels.compute_query_gradients[programs](
            k, PK, spans, scores, dq, *get_strides(k), scale, heads, length, begin, blocks,
            BN=BLOCK, C2P=terms["C2P"], **sizes, **FORWARD_OPTIONS,
        )  # fmt: skip
        kernels.compute_distance_gradients[(diagonals, heads, SPLITS)](
            q, k, spans, scores, dpk, dpq, *get_strides(q, k), scale, heads, length, begin, end, blocks,
            SPLITS=SPLITS, **sizes, **terms, **BACKWARD_OPTIONS,
        )  # fmt: skip
    return dq, dk, dv, _fold_diagonals(dpk, length), _fold_diagonals(dpq, length)


def _fold_diagonals(parts: Tensor, length: int) -> Tensor:
    """Sum the gradients of diagonals `[splits, H, T, 2 BLOCK, D]`, neighbours of which overlap: `[2R, H, D]`."""
    if parts.dim() == 1:
        return parts
    _, heads, diagonals, _, width = parts.shape
    halves = parts.sum(0).flip(1).view(heads, diagonals, 2, BLOCK, width)  # by rising first distance
    out = parts.new_zeros(heads, (diagonals + 1) * BLOCK, width)
    out[:, : diagonals * BLOCK] += halves[:, :, 0].flatten(1, 2)
    out[:, BLOCK:] += halves[:, :, 1].flatten(1, 2)
    first = (diagonals + 1) // 2 * BLOCK - length  # rows before the table
    return out[:, first : first + 2 * length].transpose(0, 1).contiguous()


@_compute_gradients.register_fake
def _(g: Tensor, states: list[Tensor], keys: Any, queries: Any, *_: Any) -> tuple[Tensor, ...]:
    q = states[0]
    tables = (q.new_empty((0,) if part is None else part.shape, dtype=torch.float32) for part in (keys, queries))
    return (*(q.new_empty(q.shape) for _ in range(3)), *tables)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:8])
    ctx.numbers = inputs[8:]


def _backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Any, ...]:
    states, rest = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
    *gradients, dpk, dpq = _compute_gradients(g.contiguous(), [*states], *rest, *ctx.numbers)
    tables = rest[:2]
    slopes = (None if part is None else grad.to(part.dtype) for part, grad in zip(tables, (dpk, dpq), strict=True))
    return (*gradients, *slopes, None, None, None, None, None)


_attend.register_autograd(_backward, setup_context=_setup_context)
