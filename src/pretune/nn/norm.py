"""Normalization over the width."""

from torch import nn

from pretune.core.config import spec


@spec
class LayerNorm:
    """Layer normalization (Ba et al., 2016), with optional learned `scale` and `bias`."""

    eps: float = 1e-5
    scale: bool = True
    bias: bool = True

    def build(self, *, width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=self.eps, elementwise_affine=self.scale, bias=self.bias)

    def params(self, *, width: int) -> int:
        return width * (self.scale + (self.scale and self.bias))


@spec
class RMSNorm:
    """Root mean square normalization (Zhang and Sennrich, 2019): no mean, no bias."""

    eps: float = 1e-6

    def build(self, *, width: int) -> nn.Module:
        return nn.RMSNorm(width, eps=self.eps)

    def params(self, *, width: int) -> int:
        return width


Norm = LayerNorm | RMSNorm
