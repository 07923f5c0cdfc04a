"""4-bit NormalFloat with double quantization (Dettmers et al., 2023): 4.127 bits per weight.

Weights are divided into blocks of 64. The largest magnitude of a block is its scale, and every weight is stored as the
index of the nearest of 16 values in [-1, 1], which are spaced like quantiles of a normal distribution. The scales,
minus their mean, are themselves stored as bytes, in groups of 256 that share a scale: a byte is the index of the
nearest of 256 values, which are denser near 0 (dynamic exponents; Dettmers et al., 2022). Two codes share a byte, the
first in the upper half: the layout of bitsandbytes, whose kernels can read it.

    weights  [… 64 …][… 64 …] …        codes  4 bits each     scales  1 byte per block     coarse  4 bytes per group
"""

import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NF4_VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Appendix E of the paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    """A 4-bit matrix. Floats are stored as their bits, so that `model.half()` does not round them."""

    codes: Tensor  # uint8, two to a byte
    scales: Tensor  # of blocks: uint8, or without `coarse` the bits of fp32
    coarse: Tensor | None  # of groups of scales, then the mean of all scales: the bits of fp32
    shape: tuple[int, int]
    block: int
    group: int | None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(part.nbytes for part in (self.codes, self.scales, self.coarse) if part is not None)


def quantize(weight: Tensor, *, block: int = 64, group: int | None = 256) -> QuantizedWeight:
    """Quantize a matrix to 4 bits; with `group=None` the scales stay in fp32."""
    rows, columns = weight.shape
    flat = _split_blocks(weight.detach().float().reshape(-1), block)
    scales = flat.abs().amax(1)
    relative = flat / torch.where(scales > 0, scales, 1.0)[:, None]
    numbers = _find_nearest(relative, build_value_table(weight.device)).to(torch.uint8).view(-1, 2)
    coarse = None
    if group is not None:
        mean = scales.mean()
        residuals = _split_blocks(scales - mean, group)
        largest = residuals.abs().amax(1)
        steps = _find_nearest(
            residuals / torch.where(largest > 0, largest, 1.0)[:, None], build_scale_table(weight.device)
        )
        coarse = torch.cat((largest, mean[None])).view(torch.int32)
    return QuantizedWeight(
        codes=numbers[:, 0] << 4 | numbers[:, 1],
        scales=scales.view(torch.int32) if coarse is None else steps.to(torch.uint8).view(-1)[: len(scales)],
        coarse=coarse,
        shape=(rows, columns),
        block=block,
        group=group,
    )


def dequantize(quantized_weight: QuantizedWeight, dtype: torch.dtype, values: Tensor, steps: Tensor) -> Tensor:
    """Return the matrix; `values` and `steps` are `build_value_table` and `build_scale_table`, on its device."""
    scales, count = compute_scales(quantized_weight, steps), quantized_weight.shape[0] * quantized_weight.shape[1]
    if (
        quantized_weight.codes.is_cuda
        and dtype in (torch.float16, torch.bfloat16, torch.float32)
        and _has_bitsandbytes()
    ):
        return dequantize_by_kernel(quantized_weight, scales, dtype)
    byte_values = torch.stack((values.repeat_interleave(16), values.repeat(16)), dim=1)  # [256, 2]: values of a byte
    flat = F.embedding(quantized_weight.codes.int(), byte_values).view(-1, quantized_weight.block) * scales[:, None]
    return flat.to(dtype).view(-1)[:count].view(quantized_weight.shape)


def compute_scales(quantized_weight: QuantizedWeight, steps: Tensor) -> Tensor:
    """Return the scales of the blocks, in fp32."""
    if quantized_weight.coarse is None or quantized_weight.group is None:
        return quantized_weight.scales.view(torch.float32)
    coarse, count = quantized_weight.coarse.view(torch.float32), quantized_weight.scales.shape[0]
    blocks = F.pad(quantized_weight.scales, (0, -count % quantized_weight.group)).int().view(-1, quantized_weight.group)
    residuals = F.embedding(blocks, steps[:, None]).squeeze(-1) * coarse[:-1, None]
    return residuals.view(-1)[:count] + coarse[-1]


def dequantize_by_kernel(quantized_weight: QuantizedWeight, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the same matrix, computed by the kernel of bitsandbytes (the extra `quant`)."""
    count = quantized_weight.shape[0] * quantized_weight.shape[1]
    codes = quantized_weight.codes[: (count + 1) // 2, None]
    out: Tensor = _load_kernel()(codes, scales, quantized_weight.block, "nf4", list(quantized_weight.shape), dtype)
    return out


def build_value_table(device: torch.device | str) -> Tensor:
    """Return the 16 values, in fp32."""
    return torch.tensor(NF4_VALUES, device=device)


def build_scale_table(device: torch.device | str) -> Tensor:
    """Return the 256 values of dynamic exponents, in fp32: each power of ten has twice as many as the one below."""
    parts = [torch.tensor([0.0, 1.0])]
    for power in range(7):
        edges = torch.linspace(0.1, 1, 2**power + 1)
        middles = 10.0 ** (power - 6) * (edges[:-1] + edges[1:]) / 2
        parts += [middles, -middles]
    return torch.cat(parts).sort().values.to(device)


def _split_blocks(flat: Tensor, size: int) -> Tensor:
    """Split into `[blocks, size]`; the last is padded with zeros."""
    return F.pad(flat, (0, -len(flat) % size)).view(-1, size)


def _find_nearest(numbers: Tensor, table: Tensor) -> Tensor:
    """Return the index of the nearest value of a sorted table for each number; of two, the lower."""
    return torch.bucketize(numbers, (table[:-1] + table[1:]) / 2)


@cache
def _has_bitsandbytes() -> bool:
    return importlib.util.find_spec("bitsandbytes") is not None


@cache
def _load_kernel() -> Any:
    import bitsandbytes  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401 (makes the op)

    return torch.ops.bitsandbytes.dequantize_4bit.default
