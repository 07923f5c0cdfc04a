"""FLOPs of training, from what was read: useful tokens only, by the formulas of `models/cost.py`."""

from collections.abc import Callable

from pretune.models.cost import flops_per_token
from pretune.models.spec import Model
from pretune.training.batch_stats import BatchStats


def build_flops_counter(*models: Model) -> Callable[[BatchStats], float]:
    """FLOPs of training on what a tally counted; the first model has the vocabulary head's targets.

    Exact for full attention; where it has a window, of sequences that all have the mean length that a token sees.
    """

    def count(seen: BatchStats) -> float:
        if not seen.tokens:
            return 0.0
        share = min(1.0, seen.targets / seen.tokens)
        return sum(_count_flops(model, seen, share if number == 0 else 0.0) for number, model in enumerate(models))

    return count


def _count_flops(model: Model, stats: BatchStats, target_share: float) -> float:
    if not model.is_encoder_decoder:
        length = max(1, round(stats.squares / stats.tokens))
        return stats.tokens * flops_per_token(model, length=length, targets=target_share)

    def example(m: int, n: int) -> float:
        return (m + n) * flops_per_token(model, length=m, target_length=n, targets=target_share)

    # An example of m source and n target tokens takes a m + b m² + c n + d n² + e m n; the differences tell them.
    one = example(1, 1)
    b = (example(3, 1) - 2 * example(2, 1) + one) / 2
    d = (example(1, 3) - 2 * example(1, 2) + one) / 2
    e = example(2, 2) - example(2, 1) - example(1, 2) + one
    a, c = example(2, 1) - one - 3 * b - e, example(1, 2) - one - 3 * d - e
    own = a * stats.source + b * stats.source_squares + c * stats.tokens + d * stats.squares
    return own + e * stats.products
