"""Rotary positions (Su et al., 2021): queries and keys are rotated by angles proportional to position."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from pretune.core.config import spec


@spec(kind="linear")
class LinearScaling:
    """Position interpolation: all frequencies divided by `factor` (Chen et al., 2023)."""

    factor: float

    def scale_frequencies(self, frequencies: Tensor) -> Tensor:
        return frequencies / self.factor


@spec(kind="banded")
class BandedScaling:
    """Frequency scaling by wavelength, as in Llama 3.1 (Dubey et al., 2024).

    Frequencies with wavelengths above `original / low` tokens are divided by `factor`, those below `original / high`
    are kept, those between are interpolated.
    """

    factor: float
    low: float
    high: float
    original: int

    def scale_frequencies(self, frequencies: Tensor) -> Tensor:
        waves = 2 * math.pi / frequencies
        blend = (self.original / waves - self.low) / (self.high - self.low)
        blend = blend.clamp(0, 1)
        return (1 - blend) * frequencies / self.factor + blend * frequencies


@spec
class Rotary:
    """Rotation of the first `fraction` of each head, in pairs (i, i + half)."""

    theta: float = 10000.0
    fraction: float = 1.0
    scaling: LinearScaling | BandedScaling | None = None

    mechanism: ClassVar[str] = "rotation"

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return RotaryPositions(self, head_width)

    def params(self, *, width: int, heads: int) -> int:
        return 0

    @property
    def max_length(self) -> None:
        return None


class RotaryPositions(nn.Module):
    def __init__(self, spec: Rotary, head_width: int) -> None:
        super().__init__()
        self.spec, self.rotary_width = spec, int(head_width * spec.fraction)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the angles, `[N, 1, rotary width]` each, in fp32."""
        steps = torch.arange(0, self.rotary_width, 2, device=positions.device, dtype=torch.float32) / self.rotary_width
        frequencies = 1.0 / (self.spec.theta**steps)
        if self.spec.scaling is not None:
            frequencies = self.spec.scaling.scale_frequencies(frequencies)
        angle = positions[:, None, None].float() * frequencies
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate heads `[N, H, D]`; channels beyond the rotary width are unchanged."""
    cos, sin = (part.to(x.dtype) for part in rotation)
    width = cos.shape[-1]
    head, rest = x[..., :width], x[..., width:]
    first, second = head.chunk(2, dim=-1)
    head = head * cos + torch.cat((-second, first), dim=-1) * sin
    return head if not rest.shape[-1] else torch.cat((head, rest), dim=-1)
