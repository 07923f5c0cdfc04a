"""Learned absolute positions (Gehring et al., 2017)."""

from typing import ClassVar

from torch import Tensor, nn

from pretune.core.config import spec
from pretune.core.errors import UsageError


@spec(kind="learned")
class LearnedEmbedding:
    """Table of `rows` vectors; position p uses row p + `offset` (some releases leave the first rows unused)."""

    rows: int
    offset: int = 0

    mechanism: ClassVar[str] = "input"

    def __post_init__(self) -> None:
        if not 0 <= self.offset < self.rows:
            raise UsageError(f"offset must be between 0 and rows {self.rows}, got {self.offset}")

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return LearnedPositions(self, width)

    def params(self, *, width: int, heads: int) -> int:
        return self.rows * width

    @property
    def max_length(self) -> int:
        """Maximum sequence length."""
        return self.rows - self.offset


class LearnedPositions(nn.Module):
    def __init__(self, spec: LearnedEmbedding, width: int) -> None:
        super().__init__()
        self.offset = spec.offset
        self.table = nn.Embedding(spec.rows, width)

    def forward(self, positions: Tensor) -> Tensor:
        out: Tensor = self.table(positions + self.offset)
        return out
