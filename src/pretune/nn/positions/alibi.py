"""ALiBi (Press et al., 2022): a linear bias by distance, with one slope per head."""

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
        """Return the bias `[H, …]` of distances `[…]` (key minus query position)."""
        count = 2 ** math.ceil(math.log2(self.heads))
        slopes = 2.0 ** (-self.steepest / count * torch.arange(1, count + 1, device=distance.device))
        if count != self.heads:  # NOTE: as in the released code: every second slope first, then the others
            slopes = torch.cat((slopes[1::2], slopes[::2]))[: self.heads]
        bias: Tensor = slopes.view(-1, *[1] * distance.dim()) * -distance.abs()
        return bias
