"""Confidence intervals over seeds, and a paired bootstrap against a baseline.

    compute_interval([0.91, 0.92, 0.90])                              # mean, standard deviation, t interval
    paired_bootstrap(gold, [run1, run2, run3], [tfidf], accuracy)     # difference on the same examples, interval, p

Seeds measure the variance of training, the bootstrap that of the test set: report both.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError
from pretune.core.log import format_count
from pretune.core.seed import make_generator
from pretune.metrics import Metric, check_finite, get_headline

Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""Differences up to this share of the scores are rounding errors, that is no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Mean of several runs; the other fields are None for a single run."""

    mean: float
    std: float | None  # of the sample: n - 1
    low: float | None
    high: float | None
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Difference between two systems on the same examples, its interval, and its significance.

    `p` is the share of resampled test sets on which the first system is not better (no difference counts against it),
    including the original set, so it is never 0.
    """

    difference: float
    low: float
    high: float
    p: float
    rounds: int
    examples: int


def compute_interval(scores: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return mean, standard deviation and Student's t interval of the scores of several runs.

    >>> interval = compute_interval([0.90, 0.91, 0.92])
    >>> round(interval.mean, 4), round(interval.std, 4), round(interval.low, 4), round(interval.high, 4)
    (0.91, 0.01, 0.8852, 0.9348)
    """
    values = check_finite("score of run", scores)
    if not values:
        raise DataError("no scores of runs; pass at least one")
    mean, n = math.fsum(values) / len(values), len(values)
    if n == 1:
        return Interval(mean=mean, std=None, low=None, high=None, runs=1)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = student_t_quantile(level, n - 1) * std / math.sqrt(n)
    return Interval(mean=mean, std=std, low=mean - half, high=mean + half, runs=n)


def compute_share_interval(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the score interval of a share (Wilson, 1927), which is good for few trials and near 0 and 1.

    >>> low, high = compute_share_interval(50, 200)
    >>> round(low, 4), round(high, 4)
    (0.1951, 0.3143)
    """
    z, share = NormalDist().inv_cdf((1 + level) / 2), successes / trials
    center, scale = share + z * z / (2 * trials), 1 + z * z / trials
    margin = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, (center - margin) / scale), min(1.0, (center + margin) / scale)


def paired_bootstrap(
    gold: Sequence[Any],
    system: Sequence[Sequence[Any]],
    baseline: Sequence[Sequence[Any]],
    metric: Metric,
    *,
    rounds: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Paired bootstrap (Efron and Tibshirani, 1993; Koehn, 2004) with any metric, recomputed on each resampled set.

    `system` and `baseline` are lists of runs, each with one prediction per example; their headline scores are averaged.
    Both are scored on the same resampled examples, so shared difficulty cancels out.
    """
    examples = list(gold)
    sides = [[list(run) for run in side] for side in (system, baseline)]
    for run in (*sides[0], *sides[1]):
        if len(run) != len(examples):
            predictions = format_count(len(run), "predictions")
            raise DataError(f"{predictions} for {format_count(len(examples), 'examples')}; pass one for each")
    if not sides[0] or not sides[1]:
        raise DataError("a comparison needs at least one run of each system")

    def compute_difference(rows: NDArray[np.int64]) -> float:
        indices = rows.tolist()
        sample_gold = [examples[i] for i in indices]
        first, second = (
            sum(get_headline(metric(sample_gold, [run[i] for i in indices])) for run in side) / len(side)
            for side in sides
        )
        return 0.0 if abs(first - second) <= ROUNDING * max(abs(first), abs(second)) else first - second

    return _bootstrap(
        len(examples), rounds, level, seed, lambda samples: np.array([compute_difference(rows) for rows in samples])
    )


def paired_bootstrap_of_means(
    system: Sequence[float], baseline: Sequence[float], *, rounds: int = 10_000, level: float = 0.95, seed: int = 0
) -> Comparison:
    """Paired bootstrap for scores that are means over examples (accuracy, exact match, SQuAD's F1); much faster.

    >>> paired_bootstrap_of_means([1, 1, 1, 0] * 50, [0, 1, 1, 0] * 50).p < 0.001
    True
    """
    first, second = (np.asarray(check_finite("score of example", side)) for side in (system, baseline))
    if len(first) != len(second):
        raise DataError(f"{len(first)} scores, but {len(second)} of the baseline; pass one per example for both")
    gaps, tolerance = first - second, ROUNDING * max(np.abs(first).max(initial=0), np.abs(second).max(initial=0))

    def compute_differences(rows: NDArray[np.int64]) -> Floats:
        means = gaps[rows].mean(axis=1)
        return np.where(np.abs(means) <= tolerance, 0.0, means)

    return _bootstrap(len(gaps), rounds, level, seed, compute_differences)


def compute_margin(first: float, second: float, examples: int) -> float:
    """Return two standard errors of the difference of two proportions of independent samples of `examples` examples."""
    return 2 * math.sqrt((first * (1 - first) + second * (1 - second)) / max(examples, 1))


def student_t_quantile(level: float, degrees: int) -> float:
    """Return the t within which a share `level` of Student's distribution lies, by scipy.

    >>> round(student_t_quantile(0.95, 4), 4)
    2.7764
    """
    if not 0 < level < 1:
        raise DataError(f"level must be between 0 and 1, got {level}")
    if degrees < 1:
        raise DataError(f"degrees of freedom must be >= 1 (two runs), got {degrees}")
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + level) / 2))


def _bootstrap(
    examples: int, rounds: int, level: float, seed: int, difference: Callable[[NDArray[np.int64]], Floats]
) -> Comparison:
    """Compute differences over sets drawn with replacement, in chunks that bound the memory."""
    if examples == 0:
        raise DataError("no examples to compare; at least one is needed")
    if rounds < 1 or not 0 < level < 1:
        raise DataError(f"rounds must be >= 1 and level between 0 and 1, got {rounds} and {level}")
    rng = make_generator(seed)
    observed_difference = float(difference(np.arange(examples)[None])[0])
    step = max(1, 2_000_000 // examples)
    parts = [
        difference(rng.integers(0, examples, size=(min(step, rounds - start), examples)))
        for start in range(0, rounds, step)
    ]
    differences = np.concatenate(parts)
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2]).tolist()
    worse = 1 + int((differences <= 0).sum())
    return Comparison(
        difference=observed_difference, low=low, high=high, p=worse / (rounds + 1), rounds=rounds, examples=examples
    )
