"""ALiBi (Press et al., 2022): attention scores fall linearly with distance, each head at its own slope."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from pretune.core.config import spec


@spec
class Alibi:
    """Slopes are powers of two from 2^(-`steepest` / heads) down to 2^-`steepest`."""

    steepest: float = 8.0

    mechanism: ClassVar[str] = "bias"

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return AlibiPositions(self, heads)

    def params(self, *, width: int, heads: int) -> int:
        return 0

    @property
    def max_length(self) -> None:
        return None


class AlibiPositions(nn.Module):
    def __init__(self, spec: Alibi, heads: int) -> None:
        super().__init__()
        self.steepest, self.heads = spec.steepest, heads

    def forward(self, distance: Tensor) -> Tensor:
        """Bias `[H, …]` for key position minus query position `[…]`."""
        whole = 2 ** math.ceil(math.log2(self.heads))
        slopes = 2.0 ** (-self.steepest / whole * torch.arange(1, whole + 1, device=distance.device))
        if whole != self.heads:  # NOTE: the released code takes every second slope first, then fills up
            slopes = torch.cat((slopes[1::2], slopes[::2]))[: self.heads]
        bias: Tensor = slopes.view(-1, *[1] * distance.dim()) * -distance.abs()
        return bias
