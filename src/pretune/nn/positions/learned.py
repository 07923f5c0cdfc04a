"""Learned absolute positions (Gehring et al., 2017)."""

from typing import ClassVar

from torch import Tensor, nn

from pretune.core.config import spec
from pretune.core.errors import UsageError


@spec
class Learned:
    """A table of `rows` vectors; position p reads row p + `offset` (some releases leave their first rows unused)."""

    rows: int
    offset: int = 0

    mechanism: ClassVar[str] = "input"

    def __post_init__(self) -> None:
        if not 0 <= self.offset < self.rows:
            raise UsageError(f"offset {self.offset} must lie between 0 and rows {self.rows}")

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return LearnedPositions(self, width)

    def params(self, *, width: int, heads: int) -> int:
        return self.rows * width

    @property
    def max_length(self) -> int:
        """The longest sequence it can place."""
        return self.rows - self.offset


class LearnedPositions(nn.Module):
    def __init__(self, spec: Learned, width: int) -> None:
        super().__init__()
        self.offset = spec.offset
        self.table = nn.Embedding(spec.rows, width)

    def forward(self, positions: Tensor) -> Tensor:
        out: Tensor = self.table(positions + self.offset)
        return out
