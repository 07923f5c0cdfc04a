"""Triton kernels of `pretune.nn.quantized_products`, for CUDA only.

Upper-case names are pointers and constants, lower-case names numbers; a program computes a block of outputs `n` for all
rows `m`, over blocks of inputs `k`. With several programs for a block of outputs, each writes the sums over its part of
the inputs, and `add_kernel` adds these.
"""

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

from pretune.nn.nf4 import NF4_VALUES, write_lookup

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, unused-ignore, misc"


@triton.jit
def find_part(K, BK: tl.constexpr):
    """Return the first and the last input of this program, in whole blocks."""
    blocks = tl.cdiv(tl.cdiv(K, BK), tl.num_programs(1))
    first = tl.program_id(1) * blocks * BK
    return first, tl.minimum(first + blocks * BK, K)


@triton.jit
def add_kernel(PARTS, Y, count, parts, BLOCK: tl.constexpr):
    """Add the sums of all parts, in their order."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(parts):
        total += tl.load(PARTS + part * count + place, mask=place < count, other=0.0)
    tl.store(Y + place, total.to(Y.dtype.element_ty), mask=place < count)


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
    first, end = find_part(K, BK)
    Y += tl.program_id(1) * rows * N
    if ONE_ROW:
        total = tl.zeros([BN, BK], tl.float32)
        for start in range(first, end, BK):
            k = start + tl.arange(0, BK)
            w = tl.load(places + k[None, :], mask=(n < N)[:, None] & (k < K)[None, :], other=0)
            x = tl.load(X + k, mask=k < K, other=0.0)
            total += w.to(tl.float32) * x.to(tl.float32)[None, :]
        tl.store(Y + n, (tl.sum(total, 1) * scale).to(Y.dtype.element_ty), mask=n < N)
    else:
        totals = tl.zeros([BM, BN], tl.float32)
        for start in range(first, end, BK):
            k = start + tl.arange(0, BK)
            w = tl.load(places + k[None, :], mask=(n < N)[:, None] & (k < K)[None, :], other=0)
            x = tl.load(X + m[:, None] * K + k[None, :], mask=(m < rows)[:, None] & (k < K)[None, :], other=0.0)
            totals = tl.dot(x, tl.trans(w.to(x.dtype)), totals)
        y = (totals * scale[None, :]).to(Y.dtype.element_ty)
        tl.store(Y + m[:, None] * N + n[None, :], y, mask=(m < rows)[:, None] & (n < N)[None, :])


NF4_LOOKUP = tl.constexpr(write_lookup(NF4_VALUES))


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
def look_up(byte, VALUES, PTX: tl.constexpr):
    """Return the values of the high and of the low codes of some bytes: with `PTX` of fp16, else read from memory."""
    if PTX:
        high, low = tl.inline_asm_elementwise(
            NF4_LOOKUP, "=r,=r,=r,=r,r", [byte], dtype=(tl.float16, tl.float16), is_pure=True, pack=4
        )
        high, low = high.to(tl.float32), low.to(tl.float32)
    else:
        code = byte.to(tl.int32)
        high, low = tl.load(VALUES + (code >> 4)), tl.load(VALUES + (code & 15))
    return high, low


@triton.jit
def nf4_matrix_kernel(
    CODES, SCALES, COARSE, VALUES, STEPS, Y, size, count, last, group,
    DOUBLE: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Dequantize `SIZE` weights of `count`, whole blocks, with values in fp32.

    `size` is the number of bytes, the last block filled.
    """
    start = tl.program_id(0).to(tl.int64) * SIZE
    k = start // 2 + tl.arange(0, SIZE // 2)
    high, low = look_up(tl.load(CODES + k, mask=k < size, other=0), VALUES, False)
    b = start // BLOCK + tl.arange(0, SIZE // BLOCK)
    mean = tl.load(COARSE + last) if DOUBLE else 0.0
    scale = load_scales(SCALES, COARSE, STEPS, b, b * BLOCK < count, mean, group, DOUBLE)
    weights = tl.reshape(tl.interleave(high, low), [SIZE // BLOCK, BLOCK]) * scale[:, None]
    place = start + tl.arange(0, SIZE)
    tl.store(Y + place, tl.reshape(weights, [SIZE]).to(Y.dtype.element_ty), mask=place < count)


@triton.jit
def nf4_kernel(
    X, CODES, SCALES, COARSE, VALUES, STEPS, Y, rows, N, K, last, group,
    ONE_ROW: tl.constexpr, DOUBLE: tl.constexpr, PTX: tl.constexpr, BLOCK: tl.constexpr,
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
    first, end = find_part(K, BK)
    Y += tl.program_id(1) * rows * N
    for start in range(first, end, BK):
        k = start // 2 + tl.arange(0, BK // 2)  # bytes, each of two weights
        byte = tl.load(first_bytes + k[None, :], mask=(n < N)[:, None] & (k < K // 2)[None, :], other=0)
        high, low = look_up(byte, VALUES, PTX)
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
