"""Input embeddings of a stack: tokens, positions, segments, norm.

The token table belongs to the model, because stacks and head may share it; everything else belongs to the stack.
"""

import math
from typing import Literal

from torch import Tensor, nn

from pretune.core.config import spec
from pretune.nn.activations import Dropout
from pretune.nn.norm import Norm


@spec
class Factor:
    """Factorized embeddings: a narrower token table and a projection to the width (Lan et al., 2020)."""

    width: int
    bias: bool = True
    input: Literal["tokens", "norm"] = "norm"  # place of the projection: before positions, or after the norm


@spec
class Embed:
    """Embedding settings: segments, scale, norm, factorization, dropout."""

    segments: int | None = None
    scale: bool = False  # multiply tokens by sqrt(width)
    norm: Norm | None = None
    factor: Factor | None = None
    dropout: float = 0.0

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
