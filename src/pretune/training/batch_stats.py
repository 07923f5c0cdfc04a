"""What a step asks of a model, counted from its batches: useful tokens only, filler is nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from torch import Tensor

from pretune.core.types import IGNORE_INDEX, Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStats:
    """Sums over sequences of n tokens (m on the encoder's side, where there are two); they add up over steps.

    Squares tell what attention costs: a token sees the other tokens of its own sequence only.
    """

    sequences: int = 0
    tokens: int = 0  # sum of n
    squares: int = 0  # sum of n²
    targets: int = 0  # positions the vocabulary head runs on, spare slots left out
    source: int = 0  # sum of m
    source_squares: int = 0  # sum of m²
    products: int = 0  # sum of m n: pairs that attention across sees

    @classmethod
    def from_batches(cls, batches: Sequence[Batch]) -> "BatchStats":
        """Count batches that lie in the host's memory."""
        total = cls()
        for batch in batches:
            n = _compute_lengths(batch)
            own = cls(sequences=int((n > 0).sum()), tokens=int(n.sum()), squares=int((n * n).sum()))
            total += own
            if batch.targets is not None:
                total += cls(targets=int((batch.targets.labels != IGNORE_INDEX).sum()))
            if batch.source is not None:
                m = _compute_lengths(batch.source)
                total += cls(source=int(m.sum()), source_squares=int((m * m).sum()), products=int((m * n).sum()))
        return total

    def __add__(self, other: "BatchStats") -> "BatchStats":
        return BatchStats(
            **{part.name: getattr(self, part.name) + getattr(other, part.name) for part in fields(BatchStats)}
        )

    @property
    def total_tokens(self) -> int:
        """Tokens of both sides."""
        return self.tokens + self.source


def _compute_lengths(batch: Batch) -> Tensor:
    """[C] the tokens of each cell that is a sequence; 0 for filler and spare cells."""
    start, end = batch.offsets[:-1].long(), batch.offsets[1:].long()
    first = batch.sequence[start.clamp(max=len(batch.sequence) - 1)]  # the cell its first token says it is in
    return (end - start) * (first >= 0)
