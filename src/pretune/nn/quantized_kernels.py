"""Triton kernels of `pretune.nn.quantized_products`, for CUDA only.

Upper-case names are pointers and constants, lower-case names numbers; a program computes a block of outputs `n` for all
rows `m`, over blocks of inputs `k`.
"""

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, unused-ignore, misc"


@triton.jit
def int8_kernel(
    X, CODES, SCALES, Y, rows, N, K,
    ONE_ROW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute a block of outputs for all rows; codes are `[N, K]`, and scales `[N]`."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.arange(0, BM)
    scale = tl.load(SCALES + n, mask=n < N, other=0.0)
    places = CODES + n[:, None].to(tl.int64) * K
    if ONE_ROW:
        total = tl.zeros([BN, BK], tl.float32)
        for start in range(0, K, BK):
            k = start + tl.arange(0, BK)
            w = tl.load(places + k[None, :], mask=(n < N)[:, None] & (k < K)[None, :], other=0)
            x = tl.load(X + k, mask=k < K, other=0.0)
            total += w.to(tl.float32) * x.to(tl.float32)[None, :]
        tl.store(Y + n, (tl.sum(total, 1) * scale).to(Y.dtype.element_ty), mask=n < N)
    else:
        totals = tl.zeros([BM, BN], tl.float32)
        for start in range(0, K, BK):
            k = start + tl.arange(0, BK)
            w = tl.load(places + k[None, :], mask=(n < N)[:, None] & (k < K)[None, :], other=0)
            x = tl.load(X + m[:, None] * K + k[None, :], mask=(m < rows)[:, None] & (k < K)[None, :], other=0.0)
            totals = tl.dot(x, tl.trans(w.to(x.dtype)), totals)
        y = (totals * scale[None, :]).to(Y.dtype.element_ty)
        tl.store(Y + m[:, None] * N + n[None, :], y, mask=(m < rows)[:, None] & (n < N)[None, :])


@triton.jit
def load_scales(SCALES, COARSE, STEPS, blocks, is_inside, mean, group, DOUBLE: tl.constexpr):
    """Load the scales of some blocks of weights; `DOUBLE`: they are codes of a table, in groups with a scale each."""
    if DOUBLE:
        code = tl.load(SCALES + blocks, mask=is_inside, other=0).to(tl.int32)
        coarse = tl.load(COARSE + blocks // group, mask=is_inside, other=0.0)
        scales = tl.load(STEPS + code) * coarse + mean
    else:
        scales = tl.load(SCALES + blocks, mask=is_inside, other=0.0)
    return scales


@triton.jit
def nf4_kernel(
    X, CODES, SCALES, COARSE, VALUES, STEPS, Y, rows, N, K, last, group,
    ONE_ROW: tl.constexpr, DOUBLE: tl.constexpr, BLOCK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute a block of outputs for all rows; a byte has two codes, and `BLOCK` weights, which divide K, a scale.

    `last` is the place of the mean of all scales in `COARSE`.
    """
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.arange(0, BM)
    mean = tl.load(COARSE + last) if DOUBLE else 0.0
    first_bytes = CODES + n[:, None].to(tl.int64) * (K // 2)
    first_blocks = n[:, None].to(tl.int64) * (K // BLOCK)
    total = tl.zeros([BN, BK // BLOCK], tl.float32)
    totals = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        k = start // 2 + tl.arange(0, BK // 2)  # bytes, each of two weights
        byte = tl.load(first_bytes + k[None, :], mask=(n < N)[:, None] & (k < K // 2)[None, :], other=0).to(tl.int32)
        high, low = tl.load(VALUES + (byte >> 4)), tl.load(VALUES + (byte & 15))
        b = start // BLOCK + tl.arange(0, BK // BLOCK)
        is_inside = (n < N)[:, None] & (b < K // BLOCK)[None, :]
        scale = load_scales(SCALES, COARSE, STEPS, first_blocks + b[None, :], is_inside, mean, group, DOUBLE)
        j = start + tl.arange(0, BK)
        if ONE_ROW:
            x = tl.load(X + j, mask=j < K, other=0.0).to(tl.float32)
            x_even, x_odd = tl.split(tl.reshape(x, [BK // 2, 2]))
            product = high * x_even[None, :] + low * x_odd[None, :]
            total += tl.sum(tl.reshape(product, [BN, BK // BLOCK, BLOCK // 2]), 2) * scale
        else:
            x = tl.load(X + m[:, None] * K + j[None, :], mask=(m < rows)[:, None] & (j < K)[None, :], other=0.0)
            x_even, x_odd = tl.split(tl.reshape(x, [BM, BK // 2, 2]))
            high = tl.reshape(tl.reshape(high, [BN, BK // BLOCK, BLOCK // 2]) * scale[:, :, None], [BN, BK // 2])
            low = tl.reshape(tl.reshape(low, [BN, BK // BLOCK, BLOCK // 2]) * scale[:, :, None], [BN, BK // 2])
            totals = tl.dot(x_even, tl.trans(high.to(x_even.dtype)), totals)
            totals = tl.dot(x_odd, tl.trans(low.to(x_odd.dtype)), totals)
    if ONE_ROW:
        tl.store(Y + n, tl.sum(total, 1).to(Y.dtype.element_ty), mask=n < N)
    else:
        y = totals.to(Y.dtype.element_ty)
        tl.store(Y + m[:, None] * N + n[None, :], y, mask=(m < rows)[:, None] & (n < N)[None, :])
