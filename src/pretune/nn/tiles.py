"""Attention over packed rows in tiles, for CUDA: what lies between sequences is skipped, nothing of size R x R is kept.

A query sees the keys of its own sequence; with `causal` those up to itself, with `window` those near it. A bias for
every head and pair of columns may be added, and probabilities may be dropped. Everything is computed in fp32 from
inputs of any precision, and nothing is added up in an order that varies: two runs give the same bits. Legend: N
queries, H heads, K key heads (K divides H), D head width, R row length (RQ of queries, RK of keys).

NOTE: dropout draws from a hash of the seed, the row, the head and the two columns, so that the passes see one mask.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from pretune.nn import tile_kernels as kernels

SHORT = 128
"""Rows up to this length have tiles of their own size."""
FORWARD = (
    {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 2},
    {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3},
)
BACKWARD = (
    {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 2},
    {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2},
)
"""Queries and keys of a tile, and how it is run: for short rows, and for longer ones. Found by trying, on an H200."""
WHOLE = {"BN": 32, "num_warps": 4, "num_stages": 2}
"""Of the kernel that makes all gradients of a short row and head at once: keys of a tile, and how it is run."""
QUERIES = {"num_warps": 4, "num_stages": 3}
"""Of the kernel that makes the gradients of queries from those of the scores."""
KEPT = 2**31
"""Bytes of the scores' gradients that are kept at a time."""
SPLITS = 8
"""Parts of the rows whose bias gradients are added up on their own."""
# ruff: noqa: N803


class Layout(NamedTuple):
    """Where sequences lie in the rows of queries and keys, and which tiles hold anything; made once per pass."""

    rows: int
    mine: Tensor  # [rows, RQ] int32: the sequence of each query
    theirs: Tensor  # [rows, RK], of each key
    wide: Tensor  # [rows, blocks, 2] int32: the keys that a block of queries of the forward pass sees, from and to
    narrow: Tensor  # the same for a block of the backward pass
    back: Tensor  # the queries that see a block of keys, in the backward pass


def layout(mine: Tensor, theirs: Tensor | None, rows: int) -> Layout:
    """From the sequence of every token `[N]`; `theirs` are those of a source, where it is not the queries' own side."""
    queries = mine.view(rows, -1).int()
    keys = queries if theirs is None else theirs.view(rows, -1).int()
    there, back = _sizes(queries.shape[1], keys.shape[1])
    if theirs is None:
        made = {block: _spans(queries, block) for block in {there["BM"], back["BM"], back["BN"]}}
        return Layout(rows, queries, keys, made[there["BM"]], made[back["BM"]], made[back["BN"]])
    wide, narrow = (_everything(queries, keys, BM) for BM in (there["BM"], back["BM"]))
    return Layout(rows, queries, keys, wide, narrow, _everything(keys, queries, back["BN"]))


def _sizes(RQ: int, RK: int) -> tuple[dict[str, int], dict[str, int]]:
    """Those of the two passes."""
    kind = int(max(RQ, RK) > SHORT)
    return FORWARD[kind], BACKWARD[kind]


def _spans(sequence: Tensor, block: int) -> Tensor:
    """From where to where the sequences reach that have a token in a block of columns."""
    rows, length = sequence.shape
    columns = torch.arange(length, device=sequence.device, dtype=torch.int32).expand(rows, -1)
    other = sequence[:, 1:] != sequence[:, :-1]
    start = torch.where(F.pad(other, (1, 0), value=True), columns, 0).cummax(1).values
    end = torch.where(F.pad(other, (0, 1), value=True), columns + 1, length).flip(1).cummin(1).values.flip(1)
    spare = -length % block
    low = F.pad(start, (0, spare), value=length).view(rows, -1, block).amin(2)
    high = F.pad(end, (0, spare), value=0).view(rows, -1, block).amax(2)
    return torch.stack((low, high), 2).int().contiguous()


def _everything(sequence: Tensor, other: Tensor, block: int) -> Tensor:
    spans = sequence.new_zeros((sequence.shape[0], -(-sequence.shape[1] // block), 2))
    spans[..., 1] = other.shape[1]
    return spans


def tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    where: Layout,
    bias: Tensor | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of queries `[N, H, D]` to keys and values `[M, K, D]`; `bias` is `[H, RQ, RK]`."""
    seed = torch.randint(0, 2**31 - 1, (2,), device=q.device, dtype=torch.int32) if dropout else None
    _, mine, theirs, wide, narrow, back = where
    bias = None if bias is None else bias.contiguous()
    given = (mine, theirs, wide, narrow, back, bias, seed, causal, window or 0, scale, dropout)
    out: Tensor = _attend(q, k, v, *given)[0]
    return out


@torch.library.custom_op("pretune::tiles", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, mine: Tensor, theirs: Tensor, wide: Tensor, narrow: Tensor, back: Tensor,
    bias: Tensor | None, seed: Tensor | None, causal: bool, window: int, scale: float, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    (rows, length), (_, heads, width) = mine.shape, q.shape
    out = q.new_empty(q.shape)
    norm = q.new_empty((rows, heads, length), dtype=torch.float32)
    blocks = wide.shape[1]
    kernels.forward[(blocks * rows * heads,)](
        q, k, v, out, norm, mine, theirs, wide, _or(bias, q), _or(seed, mine), *_strides(q, k, v),
        *_numbers(scale, dropout), heads, heads // k.shape[1], length, theirs.shape[1], blocks,
        D=width, DP=_padded(width), CAUSAL=causal, WINDOW=window, BIAS=bias is not None, DROP=dropout > 0,
        **_sizes(length, theirs.shape[1])[0],
    )  # fmt: skip
    return out, norm


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mine: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty((mine.shape[0], q.shape[1], mine.shape[1]), dtype=torch.float32)


@torch.library.custom_op("pretune::tiles_backward", mutates_args=())
def _slopes(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, norm: Tensor,
    mine: Tensor, theirs: Tensor, narrow: Tensor, back: Tensor, bias: Tensor | None, seed: Tensor | None,
    causal: bool, window: int, scale: float, dropout: float, learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradient of q, k and v side by side (that of k and v apart where they are of another side), and the bias'."""
    (rows, RQ), RK, (_, heads, width) = mine.shape, theirs.shape[1], q.shape
    shared, first, second = _grounds(q, k)
    both = first if shared else second
    split = (heads, k.shape[1], k.shape[1]) if shared else (k.shape[1], k.shape[1])
    parts = torch.split(both, [n * width for n in split], 1)
    dq, dk, dv = parts if shared else (first, *parts)
    group, sizes, keep = heads // k.shape[1], _sizes(RQ, RK)[1], bias is not None and learned
    options: dict[str, Any] = {"D": width, "DP": _padded(width), "CAUSAL": causal, "WINDOW": window}
    options |= {"BIAS": bias is not None, "DROP": dropout > 0}
    log, *others = _numbers(scale, dropout)
    given, numbers = (mine, theirs, _or(bias, q), _or(seed, mine)), (*_strides(q, k, v), log, scale, *others, heads)
    short = max(RQ, RK) <= SHORT and group == 1
    some = rows if short else max(min(KEPT // (heads * RQ * RK * q.itemsize), rows), 1)
    inner = q.new_empty((some * heads, RK, RQ) if keep or not short else (0,))
    sums = q.new_zeros((SPLITS, heads, RQ, RK) if keep else (0,), dtype=torch.float32)
    delta = torch.empty_like(norm)
    if not short:
        blocks = triton.cdiv(RQ, 64)
        kernels.deltas[(blocks * rows * heads,)](
            out, g, delta, heads, RQ, blocks, D=width, DP=_padded(width), BM=64
        )  # fmt: skip
    for begin in range(0, rows, some):
        end = min(begin + some, rows)
        if short:
            kernels.whole[(rows * heads,)](
                q, k, v, out, g, norm, *given, dq, dk, dv, inner, dq.stride(0), dk.stride(0), *numbers, RQ, RK,
                KEEP=keep, BM=_padded(RQ), BN=min(_padded(RK), WHOLE["BN"]), **options, **_run(WHOLE),
            )  # fmt: skip
        else:
            kernels.keys[(back.shape[1] * (end - begin) * k.shape[1],)](
                q, k, v, g, norm, delta, *given, back, dk, dv, inner, dk.stride(0), *numbers, group, RQ, RK, begin,
                back.shape[1], **options, **sizes,
            )  # fmt: skip
            kernels.queries[(narrow.shape[1] * (end - begin) * heads,)](
                k, narrow, inner, dq, *k.stride()[:2], dq.stride(0), scale, heads, group, RQ, RK, begin,
                narrow.shape[1], D=width, DP=_padded(width), CAUSAL=causal, BM=sizes["BM"], BN=sizes["BN"], **QUERIES,
            )  # fmt: skip
        if keep:
            down, across = triton.cdiv(RQ, sizes["BM"]), triton.cdiv(RK, sizes["BN"])
            kernels.biases[(down * across, heads, SPLITS)](
                narrow, inner, sums, heads, RQ, RK, begin, end, across,
                BM=sizes["BM"], BN=sizes["BN"], SPLITS=SPLITS, CAUSAL=causal,
            )  # fmt: skip
    return first, second, sums.sum(0) if keep else sums


@_slopes.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    bias, learned = others[7], others[-1]
    shape = bias.shape if bias is not None and learned else (0,)
    return *_grounds(q, k)[1:], q.new_empty(shape, dtype=torch.float32)


def _grounds(q: Tensor, k: Tensor) -> tuple[bool, Tensor, Tensor]:
    """Room for the gradients: whether those of q, k and v share it, then what there is of it."""
    (_, heads, width), others = q.shape, k.shape[1]
    shared = q.shape[0] == k.shape[0]
    first = q.new_empty((q.shape[0], (heads + 2 * others * shared) * width))
    second = q.new_empty((0 if shared else k.shape[0], 2 * others * width))
    return shared, first, second


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mine, theirs, _, narrow, back, bias, seed, *rest = inputs
    ctx.save_for_backward(q, k, v, *output, mine, theirs, narrow, back, bias, seed)
    ctx.rest = rest


def _back(ctx: Any, g: Tensor, _: Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    q, k, bias, learned = saved[0], saved[1], saved[9], ctx.needs_input_grad[8]
    first, second, slope = _slopes(g.contiguous(), *saved, *ctx.rest, learned)
    heads, others, width = q.shape[1], k.shape[1], q.shape[2]
    if second.shape[0]:
        dq, (dk, dv) = first, second.split(others * width, 1)
    else:
        dq, dk, dv = first.split([heads * width, others * width, others * width], 1)
    found = (dq.view(q.shape), dk.view(k.shape), dv.view(k.shape))
    return *found, None, None, None, None, None, slope.to(bias.dtype) if learned else None, None, None, None, None, None


_attend.register_autograd(_back, setup_context=_keep)


def _run(sizes: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if name.startswith("num_")}


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:2])


def _numbers(scale: float, dropout: float) -> tuple[float, int, float]:
    """The scale of scores in powers of two, the share that is dropped in 2^32nds, and what makes up for it."""
    return scale * math.log2(math.e), min(round(dropout * 2**32), 2**32 - 1), 1 / (1 - dropout)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor


def _padded(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())
