"""Products of a few rows with quantized weights, for CUDA: weights are dequantized in registers, never in memory.

A step of decoding reads every weight once, so its time is that of the bytes read. Sums are in fp32 and in a fixed
order: results are deterministic.
"""

import importlib.util

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
MAX_ROWS = 64
"""Rows up to which a weight is dequantized in registers; for more, a product with the dequantized matrix is faster."""
ONE_ROW = {"BN": 4, "BK": 1024, "num_warps": 4}
SEVERAL_ROWS = {"BN": 32, "BK": 256, "num_warps": 4, "num_stages": 4}
"""Outputs and inputs of a tile, and launch options, for one row and for several."""
NF4_ONE_ROW = {"BN": 4, "BK": 2048, "num_warps": 2}
NF4_SEVERAL_ROWS = {"BN": 32, "BK": 256, "num_warps": 4, "num_stages": 1}
"""The same for 4 bits. NOTE: with more stages the compiler would fetch table entries ahead, one by one."""


def is_supported(x: Tensor, inputs: int, block: int = 0) -> bool:
    """Return whether the kernels compute the product of these rows; of a 4-bit weight, `block` codes share a scale."""
    has_few_rows = x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and x.numel() <= MAX_ROWS * inputs
    is_aligned = block == 0 or (16 <= block <= 256 and block & (block - 1) == 0 and inputs % block == 0)
    return HAS_TRITON and has_few_rows and is_aligned and not (torch.is_grad_enabled() and x.requires_grad)


def _round_up(count: int) -> int:
    """Return the next power of two."""
    return 1 << (count - 1).bit_length()


def _choose_tile(one_row: dict[str, int], several_rows: dict[str, int], rows: int, inputs: int) -> dict[str, int]:
    """Return the constants of a kernel: a tile is no longer than a row of weights, rounded up."""
    tile = one_row if rows == 1 else several_rows
    height = max(16, _round_up(rows))
    longest = tile["BK"] if height == 16 else tile["BK"] // 2  # within shared memory
    return {**tile, "BK": max(min(longest, _round_up(inputs)), 16), "ONE_ROW": rows == 1, "BM": height}


@torch.library.custom_op("pretune::multiply_int8", mutates_args=())
def multiply_int8(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Multiply rows `[M, K]` with the transpose of an int8 weight `[N, K]` with a scale for each output."""
    from pretune.nn import quantized_kernels

    (rows, inputs), outputs = x.shape, codes.shape[0]
    y = x.new_empty((rows, outputs))
    tile = _choose_tile(ONE_ROW, SEVERAL_ROWS, rows, inputs)
    grid = (-(-outputs // tile["BN"]),)
    quantized_kernels.int8_kernel[grid](x.contiguous(), codes, scales, y, rows, outputs, inputs, **tile)
    return y


@multiply_int8.register_fake
def _(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], codes.shape[0]))


@torch.library.custom_op("pretune::multiply_nf4", mutates_args=())
def multiply_nf4(
    x: Tensor, codes: Tensor, scales: Tensor, coarse: Tensor | None, values: Tensor, steps: Tensor,
    outputs: int, block: int, group: int,
) -> Tensor:  # fmt: skip
    """Multiply rows `[M, K]` with the transpose of a 4-bit weight; without `coarse` the scales are in fp32."""
    from pretune.nn import quantized_kernels

    rows, inputs = x.shape
    y = x.new_empty((rows, outputs))
    tile = _choose_tile(NF4_ONE_ROW, NF4_SEVERAL_ROWS, rows, inputs)
    tile["BK"] = max(tile["BK"], block, 32)
    grid = (-(-outputs // tile["BN"]),)
    quantized_kernels.nf4_kernel[grid](
        x.contiguous(), codes, scales, scales if coarse is None else coarse, values, steps, y, rows, outputs, inputs,
        0 if coarse is None else coarse.shape[0] - 1, group, DOUBLE=coarse is not None, BLOCK=block, **tile,
    )  # fmt: skip
    return y


@multiply_nf4.register_fake
def _(
    x: Tensor, codes: Tensor, scales: Tensor, coarse: Tensor | None, values: Tensor, steps: Tensor,
    outputs: int, block: int, group: int,
) -> Tensor:  # fmt: skip
    return x.new_empty((x.shape[0], outputs))
