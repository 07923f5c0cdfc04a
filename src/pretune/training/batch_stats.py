"""Token and sequence counts of a step's batches, padding excluded."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from torch import Tensor

from pretune.core.types import IGNORE_INDEX, Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStats:
    """Sums over sequences of n tokens (encoder side of encoder-decoders: m); additive over steps.

    The squares give the cost of attention: a token attends within its sequence only.
    """

    sequences: int = 0
    tokens: int = 0  # sum of n
    squares: int = 0  # sum of n²
    targets: int = 0  # positions of the vocabulary head, unused slots excluded
    source: int = 0  # sum of m
    source_squares: int = 0  # sum of m²
    products: int = 0  # sum of m n: pairs of cross-attention

    @classmethod
    def from_batches(cls, batches: Sequence[Batch]) -> "BatchStats":
        """Count batches in host memory."""
        total = cls()
        for batch in batches:
            n = _compute_lengths(batch)
            total += cls(sequences=int((n > 0).sum()), tokens=int(n.sum()), squares=int((n * n).sum()))
            if batch.targets is not None:
                total += cls(targets=int((batch.targets.labels != IGNORE_INDEX).sum()))
            if batch.source is not None:
                m = _compute_lengths(batch.source)
                total += cls(source=int(m.sum()), source_squares=int((m * m).sum()), products=int((m * n).sum()))
        return total

    def __add__(self, stats: "BatchStats") -> "BatchStats":
        return BatchStats(
            **{part.name: getattr(self, part.name) + getattr(stats, part.name) for part in fields(BatchStats)}
        )

    @property
    def total_tokens(self) -> int:
        """Tokens of encoder and decoder."""
        return self.tokens + self.source


def _compute_lengths(batch: Batch) -> Tensor:
    """Return the number of tokens `[C]` of each cell that holds a sequence; 0 for padding and unused cells."""
    start, end = batch.offsets[:-1].long(), batch.offsets[1:].long()
    first = batch.sequence[start.clamp(max=len(batch.sequence) - 1)]  # sequence id of the cell's first token
    return (end - start) * (first >= 0)
