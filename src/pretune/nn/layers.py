"""Small layers: norms over the width, the position-wise feed-forward layer, and the input embeddings of a stack.

The token table belongs to the model, because stacks and head may share it; everything else belongs to the stack.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.config import Fraction, Positive, spec
from pretune.nn.activations import Dropout, gelu, gelu_tanh


@spec
class LayerNorm:
    """Layer normalization (Ba et al., 2016), with optional learned `scale` and `bias`."""

    eps: Positive[float] = 1e-5
    scale: bool = True
    bias: bool = True

    def build(self, *, width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=self.eps, elementwise_affine=self.scale, bias=self.bias)

    def params(self, *, width: int) -> int:
        return width * (self.scale + (self.scale and self.bias))


@spec
class RMSNorm:
    """Root mean square normalization (Zhang and Sennrich, 2019): no mean, no bias."""

    eps: Positive[float] = 1e-6

    def build(self, *, width: int) -> nn.Module:
        return nn.RMSNorm(width, eps=self.eps)

    def params(self, *, width: int) -> int:
        return width


Norm = LayerNorm | RMSNorm


ActivationName = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "identity"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


@spec
class FeedForward:
    """Position-wise feed-forward layer: down(act(up(x))).

    With `gated` down(act(gate(x)) * up(x)): GEGLU, SwiGLU (Shazeer, 2020).
    """

    hidden: Positive[int]
    activation: ActivationName = "gelu"
    gated: bool = False
    bias: bool = True
    dropout: Fraction = 0.0  # of the hidden activations

    def build(self, *, width: int) -> "FeedForwardLayer":
        return FeedForwardLayer(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with."""
        return (2 + self.gated) * width * self.hidden

    def params(self, *, width: int) -> int:
        return self.count_weights(width=width) + self.bias * ((1 + self.gated) * self.hidden + width)


class FeedForwardLayer(nn.Module):
    def __init__(self, spec: FeedForward, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, spec.hidden, bias=spec.bias)
        self.gate = nn.Linear(width, spec.hidden, bias=spec.bias) if spec.gated else None
        self.down = nn.Linear(spec.hidden, width, bias=spec.bias)
        self.activate = ACTIVATIONS[spec.activation]
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activate(self.up(x)) if self.gate is None else self.activate(self.gate(x)) * self.up(x)
        out: Tensor = self.down(self.dropout(hidden))
        return out


@spec
class Factor:
    """Factorized embeddings: a narrower token table and a projection to the width (Lan et al., 2020)."""

    width: Positive[int]
    bias: bool = True
    input: Literal["tokens", "norm"] = "norm"  # place of the projection: before positions, or after the norm


@spec
class Embed:
    """Embedding settings: segments, scale, norm, factorization, dropout."""

    segments: Positive[int] | None = None
    scale: bool = False  # multiply tokens by sqrt(width)
    norm: Norm | None = None
    factor: Factor | None = None
    dropout: Fraction = 0.0

    def build(self, *, width: int) -> "Embeddings":
        return Embeddings(self, width)

    def get_inner_width(self, *, width: int) -> int:
        """Return the width of positions, segments and norm."""
        return self.factor.width if self.factor and self.factor.input == "norm" else width

    def get_table_width(self, *, width: int) -> int:
        """Return the width of the token table."""
        return self.factor.width if self.factor else width

    def params(self, *, width: int) -> int:
        inner = self.get_inner_width(width=width)
        count = (self.segments or 0) * inner + (self.norm.params(width=inner) if self.norm else 0)
        return count + (self.factor.width * width + self.factor.bias * width if self.factor else 0)


class Embeddings(nn.Module):
    def __init__(self, spec: Embed, width: int) -> None:
        super().__init__()
        inner = spec.get_inner_width(width=width)
        self.scale = math.sqrt(width) if spec.scale else 1.0
        self.is_projected_first = spec.factor is not None and spec.factor.input == "tokens"
        self.segments = nn.Embedding(spec.segments, inner) if spec.segments else None
        self.norm = spec.norm.build(width=inner) if spec.norm else None
        self.project = nn.Linear(spec.factor.width, width, bias=spec.factor.bias) if spec.factor else None
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor, positions: Tensor | None, segments: Tensor | None) -> Tensor:
        """Return the block input `[N, W]` of token embeddings `[N, table]`; adds position embeddings, if given."""
        x = x * self.scale if self.scale != 1.0 else x
        if self.project is not None and self.is_projected_first:
            x = self.project(x)
        if positions is not None:
            x = x + positions.to(x.dtype)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x)
        if self.project is not None and not self.is_projected_first:
            x = self.project(x)
        return x
