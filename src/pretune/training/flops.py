"""FLOPs of training: useful tokens only, by the formulas of `models/cost.py`."""

from collections.abc import Callable

from pretune.models.cost import flops_per_token
from pretune.models.spec import Model
from pretune.training.batch_stats import BatchStats


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
