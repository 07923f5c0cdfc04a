"""Tiled attention over packed rows, for CUDA: tiles between sequences are skipped, and no R x R matrix is saved.

A query attends to the keys of its sequence, with `causal` up to itself, with `window` near it. Supports a bias for
every head and pair of columns, scores of distances (disentangled attention), and attention dropout. Everything is
computed in fp32 from inputs of any precision, with sums in a fixed order: results are deterministic.
Legend: N queries, H heads, K key-value heads (K divides H), D head
width, R row length (RQ of queries, RK of keys).

NOTE: dropout hashes seed, row, head and both columns, so that forward and backward passes have the same mask.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from pretune.nn import kernels

MAX_SHORT_ROW = 128
"""Longest row with the tiles for short rows."""
FORWARD_TILES = (
    {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 2},
    {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3},
)
BACKWARD_TILES = (
    {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 2},
    {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2},
)
"""Tile sizes (queries, keys) and launch options, for short and for longer rows. Tuned on an H200."""
SHORT_ROW_TILES = {"BN": 32, "num_warps": 4, "num_stages": 2}
"""Options of the kernel that computes all gradients of a short row and head at once."""
QUERY_KERNEL_OPTIONS = {"num_warps": 4, "num_stages": 3}
"""Options of the kernel that computes the gradients of queries from those of scores."""
ROTATION_TILE = 8192
"""Elements that a program rotates."""
DISTANCE_BLOCK = 64
"""Queries and keys of a tile with scores of distances."""
DISTANCE_TILES = (
    {"BM": DISTANCE_BLOCK, "BN": DISTANCE_BLOCK, "num_warps": 8, "num_stages": 2},
    {"BM": DISTANCE_BLOCK, "BN": DISTANCE_BLOCK, "num_warps": 8, "num_stages": 1},
)
"""Tile sizes and launch options of the forward and the backward pass with scores of distances."""
MAX_SCORE_BYTES = 2**31
"""Maximum bytes of the scores' gradients in memory at a time."""
SPLITS = 8
"""Number of row groups whose gradients of biases and distances are summed separately."""
# ruff: noqa: N803


class TileLayout(NamedTuple):
    """Sequences in the rows of queries and keys, and the non-empty tiles; built once per forward pass."""

    rows: int
    q_sequence: Tensor  # [rows, RQ] int32: the sequence of each query
    k_sequence: Tensor  # [rows, RK], of each key
    forward_spans: Tensor  # [rows, blocks, 2] int32: first and last + 1 key of a query block in the forward pass
    backward_spans: Tensor  # the same for the backward pass
    key_spans: Tensor  # first and last + 1 query of a key block in the backward pass


def build_layout(q_sequence: Tensor, k_sequence: Tensor | None, rows: int) -> TileLayout:
    """Build the layout from the sequence of every token `[N]`; `k_sequence` is that of the source, or None."""
    queries = q_sequence.view(rows, -1).int()
    keys = queries if k_sequence is None else k_sequence.view(rows, -1).int()
    forward_tiles, backward_tiles = _choose_tiles(queries.shape[1], keys.shape[1])
    blocks = (forward_tiles["BM"], backward_tiles["BM"], backward_tiles["BN"])
    if k_sequence is None:
        spans = {block: find_spans(queries, block) for block in {*blocks}}
        return TileLayout(rows, queries, keys, *(spans[block] for block in blocks))
    forward_spans, backward_spans = (_cover_rows(queries, keys, block) for block in blocks[:2])
    return TileLayout(rows, queries, keys, forward_spans, backward_spans, _cover_rows(keys, queries, blocks[2]))


def _choose_tiles(RQ: int, RK: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the tiles of forward and backward pass."""
    kind = int(max(RQ, RK) > MAX_SHORT_ROW)
    return FORWARD_TILES[kind], BACKWARD_TILES[kind]


def find_spans(sequence: Tensor, block: int) -> Tensor:
    """Return start and end of the sequences that have a token in each block of columns."""
    rows, length = sequence.shape
    columns = torch.arange(length, device=sequence.device, dtype=torch.int32).expand(rows, -1)
    is_boundary = sequence[:, 1:] != sequence[:, :-1]
    start = torch.where(F.pad(is_boundary, (1, 0), value=True), columns, 0).cummax(1).values
    end = torch.where(F.pad(is_boundary, (0, 1), value=True), columns + 1, length).flip(1).cummin(1).values.flip(1)
    spare = -length % block
    low = F.pad(start, (0, spare), value=length).view(rows, -1, block).amin(2)
    high = F.pad(end, (0, spare), value=0).view(rows, -1, block).amax(2)
    return torch.stack((low, high), 2).int().contiguous()


def _cover_rows(sequence: Tensor, other_sequence: Tensor, block: int) -> Tensor:
    spans = sequence.new_zeros((sequence.shape[0], -(-sequence.shape[1] // block), 2))
    spans[..., 1] = other_sequence.shape[1]
    return spans


def attend_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: TileLayout,
    bias: Tensor | None = None,
    distances: tuple[Tensor | None, Tensor | None] = (None, None),
    rotation: tuple[Tensor, Tensor] | tuple[None, None] = (None, None),
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Attend from queries `[N, H, D]` to keys and values `[M, K, D]`; `bias` is `[H, RQ, RK]`.

    `distances` are keys and queries `[2R, H, D]` of the distances R - 1 down to -R, for self-attention without groups,
    window and causal mask; None leaves a term out. Queries and keys are rotated by `rotation`, if `can_rotate` is true.
    """
    seed = torch.randint(0, 2**31 - 1, (2,), device=q.device, dtype=torch.int32) if dropout else None
    bias, *tables = (None if part is None else part.contiguous() for part in (bias, *distances, *rotation))
    out: Tensor = _attend(q, k, v, [*layout[1:]], bias, seed, *tables, causal, window or 0, scale, dropout)[0]
    return out


def can_rotate(q: Tensor, rotary_width: int) -> bool:
    """Return True for queries (and keys) `[N, H, D]` that `attend_tiles` can rotate."""
    return rotary_width == q.shape[-1] == q.stride(1) == round_up(q.shape[-1])


def _rotate(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate heads `[N, H, D]` from `x` to `out`, which may be `x`; with minus `sin`, back."""
    tokens, heads, width = x.shape
    padded_heads = triton.next_power_of_2(heads)
    block = max(ROTATION_TILE // (padded_heads * width), 1)
    kernels.rotate[(triton.cdiv(tokens, block),)](
        x, out, cos, sin, x.stride(0), out.stride(0), tokens, heads, D=width, HP=padded_heads, BT=block
    )


@torch.library.custom_op("pretune::tiles", mutates_args=())
def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: list[Tensor],
    bias: Tensor | None,
    seed: Tensor | None,
    keys: Tensor | None,
    queries: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    causal: bool,
    window: int,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the logarithm of each softmax denominator, and rotated queries and keys, if there are any.

    `layout` are the tensors of a `TileLayout`.
    """
    q_sequence, k_sequence, forward_spans, _, _ = layout
    (rows, length), (_, heads, width) = q_sequence.shape, q.shape
    out, rotations = q.new_empty(q.shape), _allocate_rotations(q, k, cos)
    if cos is not None and sin is not None:
        inputs, (q, k) = (q, k), _split_rotations(rotations, q, k)
        for x, y in zip(inputs, (q, k), strict=True):
            _rotate(x, y, cos, sin)
    norm = q.new_empty((rows, heads, length), dtype=torch.float32)
    blocks, terms = forward_spans.shape[1], _name_terms(keys, queries)
    tiles = DISTANCE_TILES if any(terms.values()) else _choose_tiles(length, k_sequence.shape[1])
    kernels.forward[(blocks * rows * heads,)](
        q, k, v, _replace_none(keys, q), _replace_none(queries, q), out, norm, q_sequence, k_sequence, forward_spans,
        _replace_none(bias, q), _replace_none(seed, q_sequence), *get_strides(q, k, v),
        *compute_constants(scale, dropout), heads, heads // k.shape[1], length, k_sequence.shape[1], blocks,
        D=width, DP=round_up(width), CAUSAL=causal, WINDOW=window, BIAS=bias is not None, DROP=dropout > 0,
        **terms, **tiles[0],
    )  # fmt: skip
    return out, norm, rotations


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, layout: list[Tensor], *tables: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows, length = layout[0].shape
    norm = q.new_empty((rows, q.shape[1], length), dtype=torch.float32)
    return q.new_empty(q.shape), norm, _allocate_rotations(q, k, tables[4])


def _allocate_rotations(q: Tensor, k: Tensor, cos: Tensor | None) -> Tensor:
    return q.new_empty((0,) if cos is None else (q.shape[0], (q.shape[1] + k.shape[1]) * q.shape[2]))


def _split_rotations(rotations: Tensor, q: Tensor, k: Tensor) -> list[Tensor]:
    """Return views of rotated queries and keys with the shapes of these."""
    sizes = [q.shape[1] * q.shape[2], k.shape[1] * k.shape[2]]
    return [part.view(x.shape) for part, x in zip(torch.split(rotations, sizes, 1), (q, k), strict=True)]


@torch.library.custom_op("pretune::tiles_backward", mutates_args=())
def _compute_gradients(
    g: Tensor,
    states: list[Tensor],
    layout: list[Tensor],
    bias: Tensor | None,
    seed: Tensor | None,
    keys: Tensor | None,
    queries: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    causal: bool,
    window: int,
    scale: float,
    dropout: float,
    bias_needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v in one tensor (k and v in a second one for a source), and those of the bias,
    and of keys and queries of the distances; they are empty if there are none.

    `states` are q and k after rotation, v, output and logarithms of the forward pass.
    """
    q, k, v, out, norm = states
    q_sequence, k_sequence, _, backward_spans, key_spans = layout
    (rows, RQ), RK, (_, heads, width) = q_sequence.shape, k_sequence.shape[1], q.shape
    is_shared, first, second = _allocate_gradients(q, k)
    key_gradients = first if is_shared else second
    split = (heads, k.shape[1], k.shape[1]) if is_shared else (k.shape[1], k.shape[1])
    parts = torch.split(key_gradients, [n * width for n in split], 1)
    dq, dk, dv = parts if is_shared else (first, *parts)
    group, sizes, keep = heads // k.shape[1], _choose_tiles(RQ, RK)[1], bias is not None and bias_needs_grad
    query_options, terms = QUERY_KERNEL_OPTIONS, _name_terms(keys, queries)
    has_distances, PK, PQ = any(terms.values()), _replace_none(keys, q), _replace_none(queries, q)
    if has_distances:
        sizes, query_options, key_spans = DISTANCE_TILES[1], _get_launch_options(DISTANCE_TILES[0]), backward_spans
    shape: dict[str, int] = {"D": width, "DP": round_up(width)}
    options = {**shape, "CAUSAL": causal, "WINDOW": window, "BIAS": bias is not None, "DROP": dropout > 0}
    log, *dropout_constants = compute_constants(scale, dropout)
    sequences = (q_sequence, k_sequence, _replace_none(bias, q), _replace_none(seed, q_sequence))
    numbers = (*get_strides(q, k, v), log, scale, *dropout_constants, heads)
    short = max(RQ, RK) <= MAX_SHORT_ROW and group == 1 and not has_distances
    rows_per_step = rows if short else max(min(MAX_SCORE_BYTES // (heads * RQ * RK * q.itemsize), rows), 1)
    inner = q.new_empty((rows_per_step * heads, RK, RQ) if keep or not short else (0,))
    sums = q.new_zeros((SPLITS, heads, RQ, RK) if keep else (0,), dtype=torch.float32)
    delta = torch.empty_like(norm)
    diagonals = 2 * backward_spans.shape[1] - 1
    parts_shape = (SPLITS, heads, diagonals, 2 * DISTANCE_BLOCK, width)
    dpk, dpq = (q.new_zeros((0,) if part is None else parts_shape, dtype=torch.float32) for part in (keys, queries))
    if not short:
        blocks = triton.cdiv(RQ, 64)
        kernels.compute_deltas[(blocks * rows * heads,)](out, g, delta, heads, RQ, blocks, **shape, BM=64)
    for begin in range(0, rows, rows_per_step):
        end = min(begin + rows_per_step, rows)
        if short:
            kernels.compute_row_gradients[(rows * heads,)](
                q, k, v, out, g, norm, *sequences, dq, dk, dv, inner, dq.stride(0), dk.stride(0), *numbers, RQ, RK,
                KEEP=keep, BM=round_up(RQ), BN=min(round_up(RK), SHORT_ROW_TILES["BN"]),
                **options, **_get_launch_options(SHORT_ROW_TILES),
            )  # fmt: skip
        else:
            kernels.compute_key_gradients[(key_spans.shape[1] * (end - begin) * k.shape[1],)](
                q, k, v, PK, PQ, g, norm, delta, *sequences, key_spans, dk, dv, inner, dk.stride(0), *numbers, group,
                RQ, RK, begin, key_spans.shape[1], **options, **terms, **sizes,
            )  # fmt: skip
            kernels.compute_query_gradients[(backward_spans.shape[1] * (end - begin) * heads,)](
                k, PK, backward_spans, inner, dq, *get_strides(k), dq.stride(0), scale, heads, group, RQ, RK, begin,
                backward_spans.shape[1], **shape, CAUSAL=causal, C2P=terms["C2P"],
                BM=sizes["BM"], BN=sizes["BN"], **query_options,
            )  # fmt: skip
        if has_distances:
            kernels.compute_distance_gradients[(diagonals, heads, SPLITS)](
                q, k, backward_spans, inner, dpk, dpq, *get_strides(q, k), scale, heads, RQ, begin, end,
                backward_spans.shape[1], SPLITS=SPLITS, **shape, **terms,
                BM=sizes["BM"], **_get_launch_options(sizes),
            )  # fmt: skip
        if keep:
            q_blocks, k_blocks = triton.cdiv(RQ, sizes["BM"]), triton.cdiv(RK, sizes["BN"])
            kernels.compute_bias_gradients[(q_blocks * k_blocks, heads, SPLITS)](
                backward_spans, inner, sums, RQ, RK, begin, end, BM=sizes["BM"], BN=sizes["BN"], CAUSAL=causal
            )  # fmt: skip
    if cos is not None and sin is not None:
        for part, x in ((dq, q), (dk, k)):
            heads_view = part.view(x.shape)
            _rotate(heads_view, heads_view, cos, -sin)
    return first, second, sums.sum(0) if keep else sums, _fold_diagonals(dpk, RQ), _fold_diagonals(dpq, RQ)


@_compute_gradients.register_fake
def _(
    g: Tensor, states: list[Tensor], layout: list[Tensor], bias: Any, seed: Any, keys: Any, queries: Any, *rest: Any
) -> tuple[Tensor, ...]:
    tables = (bias if rest[-1] else None, keys, queries)
    gradients = (states[0].new_empty((0,) if part is None else part.shape, dtype=torch.float32) for part in tables)
    return *_allocate_gradients(*states[:2])[1:], *gradients


def _fold_diagonals(parts: Tensor, length: int) -> Tensor:
    """Sum the gradients of diagonals `[splits, H, T, 2 blocks, D]`, neighbours of which overlap: `[2R, H, D]`."""
    if parts.dim() == 1:
        return parts
    _, heads, diagonals, _, width = parts.shape
    halves = parts.sum(0).flip(1).view(heads, diagonals, 2, DISTANCE_BLOCK, width)  # by rising first distance
    out = parts.new_zeros(heads, (diagonals + 1) * DISTANCE_BLOCK, width)
    out[:, : diagonals * DISTANCE_BLOCK] += halves[:, :, 0].flatten(1, 2)
    out[:, DISTANCE_BLOCK:] += halves[:, :, 1].flatten(1, 2)
    first = (diagonals + 1) // 2 * DISTANCE_BLOCK - length  # rows before the table
    return out[:, first : first + 2 * length].transpose(0, 1).contiguous()


def _allocate_gradients(q: Tensor, k: Tensor) -> tuple[bool, Tensor, Tensor]:
    """Allocate the gradients; return True if q, k and v share one tensor, and the tensors."""
    (_, heads, width), kv_heads = q.shape, k.shape[1]
    is_shared = q.shape[0] == k.shape[0]
    first = q.new_empty((q.shape[0], (heads + 2 * kv_heads * is_shared) * width))
    second = q.new_empty((0 if is_shared else k.shape[0], 2 * kv_heads * width))
    return is_shared, first, second


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, layout, *tables = inputs[:10]
    ctx.save_for_backward(q, k, v, *output, *layout, *tables)
    ctx.set_materialize_grads(False)
    ctx.rest = inputs[10:]


def _backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Any, ...]:
    q, k, v, out, norm, rotations, *layout, bias, seed, keys, queries, cos, sin = ctx.saved_tensors
    bias_needs_grad = ctx.needs_input_grad[4]
    if cos is not None:
        q, k = _split_rotations(rotations, q, k)
    states = [q, k, v, out, norm]
    first, second, *slopes = _compute_gradients(
        g.contiguous(), states, layout, bias, seed, keys, queries, cos, sin, *ctx.rest, bias_needs_grad
    )
    heads, kv_heads, width = q.shape[1], k.shape[1], q.shape[2]
    if second.shape[0]:
        dq, (dk, dv) = first, second.split(kv_heads * width, 1)
    else:
        dq, dk, dv = first.split([heads * width, kv_heads * width, kv_heads * width], 1)
    tables = (bias if bias_needs_grad else None, keys, queries)
    d_bias, d_keys, d_queries = (
        None if part is None else slope.to(part.dtype) for part, slope in zip(tables, slopes, strict=True)
    )
    gradients = (dq.view(q.shape), dk.view(k.shape), dv.view(k.shape), [None] * len(layout), d_bias)
    return *gradients, None, d_keys, d_queries, *[None] * 6


_attend.register_autograd(_backward, setup_context=_setup_context)


def _get_launch_options(sizes: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if name.startswith("num_")}


def get_strides(*tensors: Tensor) -> tuple[int, ...]:
    """Return the strides of tokens and heads of each tensor."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:2])


def compute_constants(scale: float, dropout: float) -> tuple[float, int, float]:
    """Return the scale of base-2 scores, the dropout threshold of 32-bit hashes, and 1 / (1 - dropout)."""
    return scale * math.log2(math.e), min(round(dropout * 2**32), 2**32 - 1), 1 / (1 - dropout)


def _name_terms(keys: Tensor | None, queries: Tensor | None) -> dict[str, bool]:
    """Return the constants of a kernel for the terms of the distances: content to position, and the reverse."""
    return {"C2P": keys is not None, "P2C": queries is not None}


def _replace_none(tensor: Tensor | None, default: Tensor) -> Tensor:
    return default if tensor is None else tensor


def round_up(size: int) -> int:
    """Return the next power of 2, at least 16: the width of a tile."""
    return max(16, 1 << (size - 1).bit_length())
