"""NormalFloat in 4 bits with double quantisation (Dettmers et al., 2023): 4.127 bits for a weight.

Weights are cut into blocks of 64. Of each block the largest magnitude is kept as its scale, and every weight as the
number of the nearest of 16 values between -1 and 1, which are as far apart as quantiles of a normal distribution. The
scales, less their mean, are themselves kept as bytes, in groups of 256 that share a scale: a byte is the number of the
nearest of 256 values, which lie closer together the nearer they are to 0 (dynamic exponents; Dettmers et al., 2022).
Two codes share a byte, the first in the upper half: the layout of bitsandbytes, whose kernels read it as it is.

    weights  [… 64 …][… 64 …] …        codes  4 bits each     scales  1 byte a block     coarse  4 bytes a group
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
"""The paper's appendix E."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeight:
    """A matrix in 4 bits. Numbers in floating point are kept as their bits, so that no `model.half()` rounds them."""

    codes: Tensor  # uint8, two to a byte
    scales: Tensor  # of blocks: uint8, or where there is no `coarse` the bits of fp32
    coarse: Tensor | None  # of groups of scales, and last the mean of all scales: the bits of fp32
    shape: tuple[int, int]
    block: int
    group: int | None

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return sum(part.nbytes for part in (self.codes, self.scales, self.coarse) if part is not None)


def quantise(weight: Tensor, *, block: int = 64, group: int | None = 256) -> QuantisedWeight:
    """The nearest that 4 bits can say; without a `group` the scales stay as they are."""
    rows, columns = weight.shape
    flat = _split_blocks(weight.detach().float().reshape(-1), block)
    scales = flat.abs().amax(1)
    relative = flat / torch.where(scales > 0, scales, 1.0)[:, None]
    numbers = _find_nearest(relative, build_value_table(weight.device)).to(torch.uint8).view(-1, 2)
    coarse = None
    if group is not None:
        mean = scales.mean()
        apart = _split_blocks(scales - mean, group)
        largest = apart.abs().amax(1)
        steps = _find_nearest(apart / torch.where(largest > 0, largest, 1.0)[:, None], build_scale_table(weight.device))
        coarse = torch.cat((largest, mean[None])).view(torch.int32)
    return QuantisedWeight(
        codes=numbers[:, 0] << 4 | numbers[:, 1],
        scales=scales.view(torch.int32) if coarse is None else steps.to(torch.uint8).view(-1)[: len(scales)],
        coarse=coarse,
        shape=(rows, columns),
        block=block,
        group=group,
    )


def dequantise(quantised_weight: QuantisedWeight, dtype: torch.dtype, values: Tensor, steps: Tensor) -> Tensor:
    """The matrix again; `values` and `steps` are the tables of `build_value_table` and `build_scale_table`, on its device."""
    scales, count = compute_scales(quantised_weight, steps), quantised_weight.shape[0] * quantised_weight.shape[1]
    if (
        quantised_weight.codes.is_cuda
        and dtype in (torch.float16, torch.bfloat16, torch.float32)
        and _has_bitsandbytes()
    ):
        return dequantise_by_kernel(quantised_weight, scales, dtype)
    both = torch.stack((values.repeat_interleave(16), values.repeat(16)), dim=1)  # [256, 2]: what a byte says
    flat = F.embedding(quantised_weight.codes.int(), both).view(-1, quantised_weight.block) * scales[:, None]
    return flat.to(dtype).view(-1)[:count].view(quantised_weight.shape)


def compute_scales(quantised_weight: QuantisedWeight, steps: Tensor) -> Tensor:
    """The scales of the blocks, in fp32."""
    if quantised_weight.coarse is None or quantised_weight.group is None:
        return quantised_weight.scales.view(torch.float32)
    coarse, count = quantised_weight.coarse.view(torch.float32), quantised_weight.scales.shape[0]
    whole = F.pad(quantised_weight.scales, (0, -count % quantised_weight.group)).int().view(-1, quantised_weight.group)
    apart = F.embedding(whole, steps[:, None]).squeeze(-1) * coarse[:-1, None]
    return apart.view(-1)[:count] + coarse[-1]


def dequantise_by_kernel(quantised_weight: QuantisedWeight, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The same by the kernel of bitsandbytes (the extra `quant`)."""
    count = quantised_weight.shape[0] * quantised_weight.shape[1]
    codes = quantised_weight.codes[: (count + 1) // 2, None]
    out: Tensor = _load_kernel()(codes, scales, quantised_weight.block, "nf4", list(quantised_weight.shape), dtype)
    return out


def build_value_table(device: torch.device | str) -> Tensor:
    """The 16 values, in fp32."""
    return torch.tensor(NF4_VALUES, device=device)


def build_scale_table(device: torch.device | str) -> Tensor:
    """The 256 values of dynamic exponents, in fp32: of each power of ten below 1 twice as many as of the one below."""
    found = [torch.tensor([0.0, 1.0])]
    for power in range(7):
        edges = torch.linspace(0.1, 1, 2**power + 1)
        middles = 10.0 ** (power - 6) * (edges[:-1] + edges[1:]) / 2
        found += [middles, -middles]
    return torch.cat(found).sort().values.to(device)


def _split_blocks(flat: Tensor, size: int) -> Tensor:
    """`[pieces, size]`, the last filled up with zeros."""
    return F.pad(flat, (0, -len(flat) % size)).view(-1, size)


def _find_nearest(numbers: Tensor, table: Tensor) -> Tensor:
    """Which of a sorted table's values is nearest to each number; of two, the lower."""
    return torch.bucketize(numbers, (table[:-1] + table[1:]) / 2)


@cache
def _has_bitsandbytes() -> bool:
    return importlib.util.find_spec("bitsandbytes") is not None


@cache
def _load_kernel() -> Any:
    import bitsandbytes  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401 (makes the op)

    return torch.ops.bitsandbytes.dequantize_4bit.default
