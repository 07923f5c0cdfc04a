"""Sinusoidal positions (Vaswani et al., 2017): sines and cosines of geometric wavelengths."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from pretune.core.config import spec


@spec
class Sinusoidal:
    """Sines (even channels) and cosines (odd channels) with wavelengths from 2 pi to `base` x 2 pi."""

    base: float = 10000.0

    mechanism: ClassVar[str] = "input"

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return SinusoidalPositions(self, width)

    def params(self, *, width: int, heads: int) -> int:
        return 0

    @property
    def max_length(self) -> None:
        return None


class SinusoidalPositions(nn.Module):
    def __init__(self, spec: Sinusoidal, width: int) -> None:
        super().__init__()
        self.base, self.width = spec.base, width

    def forward(self, positions: Tensor) -> Tensor:
        channels = torch.arange(0, self.width, 2, device=positions.device, dtype=torch.float32)
        angle = positions[:, None].float() * torch.exp(channels * (-math.log(self.base) / self.width))
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, : self.width]
