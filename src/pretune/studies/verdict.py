"""Verdicts: whether a claim about two rows holds, by paired differences over seeds.

The rule is fixed before a study runs: at least three seeds; a claim holds if the mean paired difference has the claimed
sign and exceeds twice its standard error, it does not hold if it has the other sign by as much, and is undecided
otherwise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pretune.metrics.significance import compute_interval
from pretune.studies.spec import MIN_SEEDS

Outcome = Literal["holds", "does not hold", "undecided"]
FACTOR = 2.0
"""Standard errors that a difference must exceed."""
ROUNDING = 1e-12
"""Relative difference of two values that are the same but for rounding."""
RULE = (
    f"At least {MIN_SEEDS} seeds. A claim holds if the mean paired difference over seeds has the claimed sign and "
    f"exceeds {FACTOR:g} standard errors; it does not hold if it has the other sign by as much; else it is undecided."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict of a claim: the mean difference in the claimed direction, its standard error, and the reason."""

    outcome: Outcome
    difference: float | None
    error: float | None  # standard error; None: fewer than two seeds
    seeds: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """Paired difference of two rows over seeds, its interval, and the p-value of Student's t-test (two-sided)."""

    difference: float
    low: float | None
    high: float | None
    p: float | None


def decide(better: Mapping[int, float], worse: Mapping[int, float], *, lower: bool, margin: float = 0.0) -> Verdict:
    """Return the verdict on the claim that `better` is better than `worse` by more than `margin`.

    Both are values by seed; seeds that only one of them has are left out. With `lower`, smaller values are better.

    >>> decide({0: 0.9, 1: 0.8, 2: 0.9}, {0: 0.5, 1: 0.5, 2: 0.5}, lower=False).outcome
    'holds'
    """
    sign = -1.0 if lower else 1.0
    seeds = sorted(better.keys() & worse.keys())
    differences = [sign * (better[seed] - worse[seed]) - margin for seed in seeds]
    count = len(differences)
    if not differences or not all(map(math.isfinite, differences)):
        return Verdict(outcome="undecided", difference=None, error=None, seeds=count, reason="no finite paired values")
    mean, error = compute_standard_error(differences)
    difference = mean + margin
    if count < MIN_SEEDS:
        return Verdict(
            outcome="undecided", difference=difference, error=error, seeds=count, reason=f"fewer than {MIN_SEEDS} seeds"
        )
    assert error is not None
    rounding = ROUNDING * max(abs(value) for seed in seeds for value in (better[seed], worse[seed], margin))
    if abs(mean) <= max(FACTOR * error, rounding):
        reason, outcome = f"within {FACTOR:g} standard errors", "undecided"
    else:
        reason, outcome = f"beyond {FACTOR:g} standard errors", "holds" if mean > 0 else "does not hold"
    return Verdict(outcome=outcome, difference=difference, error=error, seeds=count, reason=reason)  # type: ignore[arg-type]


def is_better(values: Mapping[int, float], baseline: Mapping[int, float], *, lower: bool) -> bool:
    """Return whether a row is better than a baseline by more than the rule's standard errors; of one seed, at all.

    >>> is_better({0: 0.52, 1: 0.49, 2: 0.5}, {0: 0.5, 1: 0.5, 2: 0.5}, lower=False)
    False
    """
    sign = -1.0 if lower else 1.0
    seeds = sorted(values.keys() & baseline.keys())
    mean, error = compute_standard_error([sign * (values[seed] - baseline[seed]) for seed in seeds])
    return mean > FACTOR * (error or 0.0)


def compute_standard_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error; None for a single value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def compare_paired(values: Mapping[int, float], reference: Mapping[int, float]) -> PairedTest | None:
    """Return the paired difference to a reference over common seeds; None without any."""
    seeds = sorted(values.keys() & reference.keys())
    differences = [values[seed] - reference[seed] for seed in seeds]
    if not differences or not all(map(math.isfinite, differences)):
        return None
    mean, error = compute_standard_error(differences)
    if error is None:
        return PairedTest(difference=mean, low=None, high=None, p=None)
    interval = compute_interval(differences)
    return PairedTest(difference=mean, low=interval.low, high=interval.high, p=_compute_p(mean, error, len(seeds) - 1))


def _compute_p(mean: float, error: float, degrees: int) -> float:
    from scipy.special import stdtr

    if error == 0:
        return 0.0 if mean else 1.0
    return float(2 * stdtr(degrees, -abs(mean / error)))
