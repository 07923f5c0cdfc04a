"""Products of a few rows with quantized weights, for CUDA: weights are dequantized in registers, never in memory.

A step of decoding reads every weight once, so its time is that of the bytes read. Sums are in fp32 and in a fixed
order: results are deterministic.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
MAX_ROWS = 64
"""Rows up to which a weight is dequantized in registers; for more, a product with the dequantized matrix is faster."""
_SEVERAL_ROWS = {"BN": 32, "BK": 256, "num_warps": 4, "num_stages": 4, "programs": 264}
TILES = {
    8: ({"BN": 4, "BK": 1024, "num_warps": 4, "programs": 1}, _SEVERAL_ROWS),
    4: ({"BN": 4, "BK": 2048, "num_warps": 4, "programs": 1}, _SEVERAL_ROWS),
}
"""Bits of a weight -> tiles for one row and for several: outputs and inputs of a tile, launch options, and programs
wanted: few blocks of outputs are split by inputs."""
MATRIX_TILE = 2048
"""Weights of a matrix that one program dequantizes."""


def is_supported(x: Tensor, inputs: int, block: int = 0) -> bool:
    """Return whether the kernels compute the product of these rows; of a 4-bit weight, `block` codes share a scale."""
    has_few_rows = x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and x.numel() <= MAX_ROWS * inputs
    is_aligned = block == 0 or (is_supported_block(block) and inputs % block == 0)
    return HAS_TRITON and has_few_rows and is_aligned and not (torch.is_grad_enabled() and x.requires_grad)


def is_supported_block(block: int) -> bool:
    """Return whether the kernels support this number of weights that share a scale: a power of two."""
    return 16 <= block <= 256 and block & (block - 1) == 0


def _round_up(count: int) -> int:
    """Return the next power of two."""
    return 1 << (count - 1).bit_length()


def _choose_tile(bits: int, rows: int, inputs: int, min_length: int) -> dict[str, int]:
    """Return the tile of a product; a block of inputs is no longer than K, rounded up, and at least `min_length`."""
    tile, height = TILES[bits][rows > 1], max(16, _round_up(rows))
    longest = tile["BK"] if height == 16 else tile["BK"] // 2  # within shared memory
    return {**tile, "BK": max(min(longest, _round_up(inputs)), min_length), "BM": height, "ONE_ROW": rows == 1}


def _launch(
    kernel: Any, x: Tensor, operands: Sequence[Any], outputs: int, tile: dict[str, int], constants: Mapping[str, object]
) -> Tensor:
    """Run a kernel over rows `[M, K]`."""
    from pretune.nn import quantized_kernels

    rows, inputs = x.shape
    blocks = -(-outputs // tile["BN"])
    parts = max(1, min(tile.pop("programs") // blocks, inputs // tile["BK"]))
    y = x.new_empty((rows, outputs))
    sums = y if parts == 1 else x.new_empty((parts, rows, outputs), dtype=torch.float32)
    kernel[blocks, parts](x.contiguous(), *operands, sums, rows, outputs, inputs, **tile, **constants)
    if parts > 1:
        quantized_kernels.add_kernel[(-(-y.numel() // 256),)](sums, y, y.numel(), parts, BLOCK=256)
    return y


@torch.library.custom_op("pretune::multiply_int8", mutates_args=())
def multiply_int8(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Multiply rows `[M, K]` with the transpose of an int8 weight `[N, K]` with a scale for each output."""
    from pretune.nn.quantized_kernels import int8_kernel

    return _launch(
        int8_kernel, x, (codes, scales), codes.shape[0], _choose_tile(8, x.shape[0], x.shape[1], min_length=16), {}
    )


@multiply_int8.register_fake
def _(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], codes.shape[0]))


@torch.library.custom_op("pretune::multiply_nf4", mutates_args=())
def multiply_nf4(
    x: Tensor, codes: Tensor, scales: Tensor, coarse: Tensor | None, values: Tensor, steps: Tensor,
    outputs: int, block: int, group: int,
) -> Tensor:  # fmt: skip
    """Multiply rows `[M, K]` with the transpose of a 4-bit weight; without `coarse` the scales are in fp32.

    The 16 values are rounded to fp16, a relative error of at most 2^-11; that of a weight in bf16 is up to 2^-8.
    """
    from pretune.nn.quantized_kernels import nf4_kernel

    operands = (codes, scales, scales if coarse is None else coarse, values, steps)
    last = 0 if coarse is None else coarse.shape[0] - 1
    facts = {"last": last, "group": group, "DOUBLE": coarse is not None, "PTX": x.is_cuda, "BLOCK": block}
    return _launch(
        nf4_kernel, x, operands, outputs, _choose_tile(4, x.shape[0], x.shape[1], min_length=max(block, 32)), facts
    )


@multiply_nf4.register_fake
def _(x: Tensor, codes: Any, scales: Any, coarse: Any, values: Any, steps: Any, outputs: int, *_: Any) -> Tensor:
    return x.new_empty((x.shape[0], outputs))


@torch.library.custom_op("pretune::dequantize_nf4", mutates_args=())
def dequantize_nf4(
    codes: Tensor, scales: Tensor, coarse: Tensor | None, values: Tensor, steps: Tensor,
    outputs: int, inputs: int, block: int, group: int, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Return a 4-bit weight as a matrix; without `coarse` the scales are in fp32."""
    from pretune.nn.quantized_kernels import nf4_matrix_kernel

    weight = codes.new_empty((outputs, inputs), dtype=dtype)
    count, last = weight.numel(), 0 if coarse is None else coarse.shape[0] - 1
    nf4_matrix_kernel[(-(-count // MATRIX_TILE),)](
        codes, scales, scales if coarse is None else coarse, values, steps, weight, codes.numel(), count, last, group,
        DOUBLE=coarse is not None, BLOCK=block, SIZE=MATRIX_TILE,
    )  # fmt: skip
    return weight


@dequantize_nf4.register_fake
def _(codes: Tensor, *arguments: Any) -> Tensor:
    outputs, inputs, _, _, dtype = arguments[-5:]
    return codes.new_empty((outputs, inputs), dtype=dtype)
