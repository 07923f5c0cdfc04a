"""What torch does slowly on a CPU, done faster: the derivative of gelu, and dropout.

torch's backward of the exact gelu evaluates one element at a time on some processors, and its dropout draws a random
number of 32 bits or more for every element. Here the derivative is made in the forward pass by operations that work on
many elements at once, and four elements share a random number. On other devices, and under a compiler, torch's own
functions are used.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_STEPS = 2**16  # what a probability is counted in


def gelu(x: Tensor) -> Tensor:
    """x Φ(x) (Hendrycks and Gimpel, 2016)."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not (torch.is_grad_enabled() and x.requires_grad):
        return F.gelu(x)
    out: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return out


def dropout(x: Tensor, p: float) -> Tensor:
    """Elements are zero with probability `p`, counted in 65,536ths, and otherwise scaled to keep the mean."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not 0 < p < 1:
        return F.dropout(x, p)
    out: Tensor = _Dropout.apply(x, p)  # type: ignore[no-untyped-call]
    return out


class Dropout(nn.Dropout):
    """torch's module, by the function above."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training and self.p > 0 else x


class _Gelu(torch.autograd.Function):
    """Keeps the derivative Φ(x) + x φ(x) in place of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        below = torch.erf(x * math.sqrt(0.5)).add_(1).mul_(0.5)  # Φ
        out = x * below
        ctx.save_for_backward(below.addcmul_(x, (x * x).mul_(-0.5).exp_(), value=1 / math.sqrt(2 * math.pi)))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (derivative,) = ctx.saved_tensors
        return torch.mul(slope, derivative)


class _Dropout(torch.autograd.Function):
    """Keeps the factors: 0, or what makes up for the zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        dropped, count = round(p * _STEPS), x.numel()
        bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
        drawn = bits.view(torch.int16)[:count].view(x.shape)
        factors = (drawn >= dropped - _STEPS // 2).to(x.dtype).mul_(_STEPS / max(_STEPS - dropped, 1))
        ctx.save_for_backward(factors)
        return x * factors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (factors,) = ctx.saved_tensors
        return slope * factors, None
