"""Relative position buckets (Raffel et al., 2020): a learned bias per head and distance bucket."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from pretune.core.config import spec
from pretune.core.errors import UsageError


@spec
class RelativeBias:
    """Short distances have a bucket each; longer ones share logarithmic buckets up to `max_distance`."""

    buckets: int = 32
    max_distance: int = 128
    both_ways: bool = True  # half of the buckets for later keys; otherwise these have distance 0

    mechanism: ClassVar[str] = "bias"

    def __post_init__(self) -> None:
        min_buckets = 4 if self.both_ways else 2
        if self.buckets < min_buckets or self.max_distance <= self.max_exact:
            raise UsageError(
                f"buckets must be at least {min_buckets} and max_distance above {self.max_exact}, "
                f"got buckets {self.buckets} and max_distance {self.max_distance}"
            )

    @property
    def max_exact(self) -> int:
        """Distance below which each distance has its own bucket."""
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
        """Return the bias `[H, …]` of distances `[…]` (key minus query position)."""
        out: Tensor = self.table(self.compute_bucket(distance)).movedim(-1, 0)
        return out

    def compute_bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance."""
        buckets, first = self.spec.buckets, torch.zeros_like(distance)
        if self.spec.both_ways:
            buckets //= 2
            first = (distance > 0) * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        max_exact = self.spec.max_exact
        bucket = (
            torch.log(distance.clamp(min=1).float() / max_exact)
            / math.log(self.spec.max_distance / max_exact)
            * (buckets - max_exact)
        )
        bucket = (max_exact + bucket.to(torch.long)).clamp(max=buckets - 1)
        return first + torch.where(distance < max_exact, distance, bucket)
