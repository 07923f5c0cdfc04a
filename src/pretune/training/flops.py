"""Token counts of batches, and the FLOPs of training on them by the formulas of `models/cost.py`; padding excluded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from torch import Tensor

from pretune.core.types import IGNORE_INDEX, Batch
from pretune.models.cost import flops_per_token
from pretune.models.spec import Model


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


def build_flops_counter(*models: Model) -> Callable[[BatchStats], float]:
    """Return a function from token counts to training FLOPs; only the first model has vocabulary targets.

    Exact for full attention; with a sliding window, all sequences are taken to have the mean length.
    """

    def count(stats: BatchStats) -> float:
        if not stats.tokens:
            return 0.0
        target_share = min(1.0, stats.targets / stats.tokens)
        return sum(
            _count_flops(model, stats, target_share if number == 0 else 0.0) for number, model in enumerate(models)
        )

    return count


def _count_flops(model: Model, stats: BatchStats, target_share: float) -> float:
    if not model.is_encoder_decoder:
        length = max(1, round(stats.squares / stats.tokens))
        return stats.tokens * flops_per_token(model, length=length, targets=target_share)

    def compute_example(m: int, n: int) -> float:
        return (m + n) * flops_per_token(model, length=m, target_length=n, targets=target_share)

    # m source and n target tokens cost alpha m + b m² + c n + d n² + e m n; finite differences give the coefficients.
    base = compute_example(1, 1)
    b = (compute_example(3, 1) - 2 * compute_example(2, 1) + base) / 2
    d = (compute_example(1, 3) - 2 * compute_example(1, 2) + base) / 2
    e = compute_example(2, 2) - compute_example(2, 1) - compute_example(1, 2) + base
    alpha, c = compute_example(2, 1) - base - 3 * b - e, compute_example(1, 2) - base - 3 * d - e
    total = alpha * stats.source + b * stats.source_squares + c * stats.tokens + d * stats.squares
    return total + e * stats.products
