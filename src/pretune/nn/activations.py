"""gelu and dropout with fast implementations for CPU and for compiled graphs on a GPU.

On a CPU, torch's backward of the exact gelu is not vectorized, and its dropout draws at least 32 random bits per
element. Here the derivative is computed in the forward pass by vectorized operations, and four elements share 64 random
bits. In a compiled graph on a GPU, both are bound by arithmetic instead of memory: there dropout hashes the index of an
element instead of running ten Philox rounds, and gelu computes the error function from the exponential that its
derivative needs. Otherwise torch's implementations are used.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_PROBABILITY_STEPS = 2**16  # resolution of a probability
_HALF_DTYPES = (torch.bfloat16, torch.float16)


def gelu(x: Tensor) -> Tensor:
    """Compute gelu: x Φ(x) (Hendrycks and Gimpel, 2016)."""
    if _is_fused(x) and x.dtype in _HALF_DTYPES:
        fused_out: Tensor = _FusedGelu.apply(x)  # type: ignore[no-untyped-call]
        return fused_out
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not (torch.is_grad_enabled() and x.requires_grad):
        return F.gelu(x)
    out: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return out


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute the tanh approximation of gelu."""
    if _is_fused(x) and x.dtype in _HALF_DTYPES:
        out: Tensor = _FusedGeluTanh.apply(x)  # type: ignore[no-untyped-call]
        return out
    return F.gelu(x, approximate="tanh")


def dropout(x: Tensor, p: float) -> Tensor:
    """Set elements to zero with probability `p` (in steps of 1/65,536 or finer); scale the others by 1 / (1 - p)."""
    if _is_fused(x) and 0 < p < 1:
        return torch.where(_draw_keep_mask(x, p), x * (1 / (1 - p)), 0)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not 0 < p < 1:
        return F.dropout(x, p)
    out: Tensor = _Dropout.apply(x, p)  # type: ignore[no-untyped-call]
    return out


class Dropout(nn.Dropout):
    """`nn.Dropout` with the function above."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training and self.p > 0 else x


def _is_fused(x: Tensor) -> bool:
    """Return True inside a compiled graph on a GPU."""
    return x.device.type == "cuda" and torch.compiler.is_compiling()


def _draw_keep_mask(x: Tensor, p: float) -> Tensor:
    """Return the mask of kept elements: a hash of their index, with two random seeds, against a threshold."""
    seeds = torch.randint(0, 2**31 - 1, (2,), device=x.device, dtype=torch.int32)
    index = torch.arange(x.numel(), device=x.device, dtype=torch.int32).view(x.shape)
    return hash_bits(index, seeds[0], seeds[1]) >= compute_threshold(p)


def compute_threshold(p: float) -> int:
    """Return the int32 threshold below which a share `p` of all int32 values lies."""
    return round(p * 2**32) - 2**31


def hash_bits(index: Tensor, seed: Tensor, second_seed: Tensor) -> Tensor:
    """Hash each int32 index to 32 bits; the high bits are the best. Multiply and shift, with two seeds.

    NOTE: shifts of signed integers repeat the sign bit, which mixes as well and needs no mask.
    """
    x = (index ^ seed) * 0x7FEB352D
    x = (x ^ (x >> 16) ^ second_seed) * (0x846CA68B - 2**32)
    return (x ^ (x >> 15)) * (0x9E3779B1 - 2**32)


class _FusedGelu(torch.autograd.Function):
    """gelu with Φ approximated by Abramowitz and Stegun, 7.1.26 (error 1.5e-7)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x.float() * _compute_cdf_pdf(x.float())[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        cdf, pdf = _compute_cdf_pdf(x.float())
        return torch.mul(slope.float(), cdf + x.float() * pdf).to(slope.dtype)


def _compute_cdf_pdf(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return Φ(x) and φ(x)."""
    bell = torch.exp(-0.5 * x * x)
    t = 1 / (1 + 0.3275911 * math.sqrt(0.5) * x.abs())
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = 0.5 * series * bell
    return torch.where(x < 0, tail, 1 - tail), bell * (1 / math.sqrt(2 * math.pi))


class _FusedGeluTanh(torch.autograd.Function):
    """gelu_tanh with (1 + tanh u) / 2 as the sigmoid of 2u: one exponential."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x.float() * torch.sigmoid(_compute_tanh_argument(x.float()))).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        x32 = x.float()
        share = torch.sigmoid(_compute_tanh_argument(x32))
        steep = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x32 * x32)
        return torch.mul(slope.float(), share + x32 * share * (1 - share) * steep).to(slope.dtype)


def _compute_tanh_argument(x: Tensor) -> Tensor:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


class _Gelu(torch.autograd.Function):
    """gelu that saves the derivative Φ(x) + x φ(x) instead of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        cdf = torch.erf(x * math.sqrt(0.5)).add_(1).mul_(0.5)  # Φ
        out = x * cdf
        ctx.save_for_backward(cdf.addcmul_(x, (x * x).mul_(-0.5).exp_(), value=1 / math.sqrt(2 * math.pi)))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (derivative,) = ctx.saved_tensors
        return torch.mul(slope, derivative)


class _Dropout(torch.autograd.Function):
    """Dropout that saves the factors: 0 or 1 / (1 - p)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        threshold, count = round(p * _PROBABILITY_STEPS), x.numel()
        bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
        values = bits.view(torch.int16)[:count].view(x.shape)
        factors = (
            (values >= threshold - _PROBABILITY_STEPS // 2)
            .to(x.dtype)
            .mul_(_PROBABILITY_STEPS / max(_PROBABILITY_STEPS - threshold, 1))
        )
        ctx.save_for_backward(factors)
        return x * factors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (factors,) = ctx.saved_tensors
        return slope * factors, None
