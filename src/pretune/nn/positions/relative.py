"""Relative position buckets (Raffel et al., 2020): a learned bias per head and bucket of distances."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from pretune.core.config import spec
from pretune.core.errors import UsageError


@spec
class RelativeBias:
    """Near distances have a bucket each, far ones share buckets that grow logarithmically up to `far`."""

    buckets: int = 32
    far: int = 128
    both_ways: bool = True  # half of the buckets for keys after the query; otherwise those count as distance 0

    mechanism: ClassVar[str] = "bias"

    def __post_init__(self) -> None:
        least = 4 if self.both_ways else 2
        if self.buckets < least or self.far <= self.max_exact:
            raise UsageError(
                f"buckets {self.buckets} must be at least {least}, and far {self.far} beyond {self.max_exact}"
            )

    @property
    def max_exact(self) -> int:
        """Distances below this have a bucket each."""
        return (self.buckets // 2 if self.both_ways else self.buckets) // 2

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return RelativePositions(self, width, heads)

    def params(self, *, width: int, heads: int) -> int:
        return self.buckets * heads

    @property
    def max_length(self) -> None:
        return None


class RelativePositions(nn.Module):
    def __init__(self, spec: RelativeBias, width: int, heads: int) -> None:
        super().__init__()
        self.spec, self.width = spec, width
        self.table = nn.Embedding(spec.buckets, heads)

    def forward(self, distance: Tensor) -> Tensor:
        """Bias `[H, …]` for key position minus query position `[…]`."""
        out: Tensor = self.table(self.compute_bucket(distance)).movedim(-1, 0)
        return out

    def compute_bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each distance."""
        buckets, first = self.spec.buckets, torch.zeros_like(distance)
        if self.spec.both_ways:
            buckets //= 2
            first = (distance > 0) * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        near = self.spec.max_exact
        far = torch.log(distance.clamp(min=1).float() / near) / math.log(self.spec.far / near) * (buckets - near)
        far = (near + far.to(torch.long)).clamp(max=buckets - 1)
        return first + torch.where(distance < near, distance, far)
