"""Verdicts of claims: the rule, which is fixed before a study runs.

At least three seeds; a claim about two rows holds if the mean paired difference over seeds has the claimed sign and
exceeds twice its standard error, it does not hold if it has the other sign by as much, and is undecided otherwise. If
one of the rows has a single pre-training, its seeds are those of the fine-tuning; the standard error then also has the
part of the test examples, by a jackknife over blocks of them, and the verdict says "one pre-training".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pretune.metrics.significance import compute_interval
from pretune.reports.study_record import DecidingBudget, Outcome, PairedDifference
from pretune.studies.spec import MIN_SEEDS

FACTOR = 2.0
"""Standard errors that a difference must exceed."""
ROUNDING = 1e-12
"""Relative difference of two values that are the same but for rounding."""
MAX_NEEDED = 1e6
"""Larger numbers of seeds and examples would decide nothing that anybody can run."""


Blocks = Mapping[int, Sequence[Sequence[float]]]
"""Scores without each of the blocks of the test examples, by seed; of a mean of scores, those of each member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict of a claim: the mean difference in the claimed direction, its standard error, and the reason."""

    outcome: Outcome
    difference: float | None
    error: float | None  # standard error; None: fewer than two seeds
    seeds: int
    reason: str
    factor: float | None = None  # of the seeds and test examples with which this difference would be decided


def decide(
    better: Mapping[int, float],
    worse: Mapping[int, float],
    *,
    lower: bool,
    margin: float = 0.0,
    example_error: float = 0.0,
) -> Verdict:
    """Return the verdict on the claim that `better` is better than `worse` by more than `margin`.

    Both are values by seed; seeds that only one of them has are left out. With `lower`, smaller values are better.
    `example_error` is the part of the standard error that is not one of seeds.

    >>> decide({0: 0.9, 1: 0.8, 2: 0.9}, {0: 0.5, 1: 0.5, 2: 0.5}, lower=False).outcome
    'holds'
    """
    sign = -1.0 if lower else 1.0
    differences = [sign * difference - margin for difference in subtract_paired(better, worse)]
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
    error = math.hypot(error, example_error)
    paired_values = [values[seed] for values in (better, worse) for seed in better.keys() & worse.keys()]
    rounding = ROUNDING * max(map(abs, [*paired_values, margin]))
    if abs(mean) <= max(FACTOR * error, rounding):
        factor = (FACTOR * error / mean) ** 2 if abs(mean) > rounding else math.inf
        verdict = Verdict(outcome="undecided", difference=difference, error=error, seeds=count, reason="within")
        verdict = replace(verdict, factor=factor if count * factor <= MAX_NEEDED else None)
    else:
        outcome: Outcome = "holds" if mean > 0 else "does not hold"
        verdict = Verdict(outcome=outcome, difference=difference, error=error, seeds=count, reason="beyond")
    return replace(verdict, reason=f"{verdict.reason} {FACTOR:g} standard errors")


def compute_example_error(better: Blocks, worse: Blocks) -> float | None:
    """Return the standard error of a difference due to the test examples, by a jackknife over blocks; None without.

    Both rows leave out the same examples. The differences are means over seeds, so the error is not one of seeds.

    >>> compute_example_error({0: [[0.5, 0.7]]}, {0: [[0.5, 0.5]]})
    0.1
    """
    seeds = sorted(better.keys() & worse.keys())
    shapes = {tuple(map(len, blocks[seed])) for blocks in (better, worse) for seed in seeds}
    if len(shapes) != 1 or min(shape := shapes.pop(), default=0) < 2:
        return None
    variance = 0.0
    for place, count in enumerate(shape):
        differences = [
            math.fsum(better[seed][place][block] - worse[seed][place][block] for seed in seeds) / len(seeds)
            for block in range(count)
        ]
        mean = math.fsum(differences) / count
        variance += (count - 1) / count * math.fsum((difference - mean) ** 2 for difference in differences)
    return math.sqrt(variance)


def compute_deciding_budget(verdict: Verdict, examples: int | None) -> DecidingBudget | None:
    """Return the numbers of seeds and test examples that would decide a difference as it was measured."""
    if verdict.factor is None:
        return None
    budget: DecidingBudget = {"seeds": math.ceil(verdict.seeds * verdict.factor)}
    return budget if examples is None else {**budget, "examples": math.ceil(examples * verdict.factor)}


def is_better(values: Mapping[int, float], baseline: Mapping[int, float], *, lower: bool) -> bool:
    """Return whether a row is better than a baseline by more than the rule's standard errors; of one seed, at all.

    >>> is_better({0: 0.52, 1: 0.49, 2: 0.5}, {0: 0.5, 1: 0.5, 2: 0.5}, lower=False)
    False
    """
    sign = -1.0 if lower else 1.0
    mean, error = compute_standard_error([sign * difference for difference in subtract_paired(values, baseline)])
    return mean > FACTOR * (error or 0.0)


def subtract_paired(values: Mapping[int, float], reference: Mapping[int, float]) -> list[float]:
    """Return the differences of the seeds that both have."""
    return [values[seed] - reference[seed] for seed in sorted(values.keys() & reference.keys())]


def compute_standard_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error; None for a single value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def compare_paired(values: Mapping[int, float], reference: Mapping[int, float]) -> PairedDifference | None:
    """Return the paired difference to a reference over common seeds; None without any."""
    differences = subtract_paired(values, reference)
    if not differences or not all(map(math.isfinite, differences)):
        return None
    mean, error = compute_standard_error(differences)
    if error is None:
        return {"difference": mean, "low": None, "high": None, "p": None}
    interval = compute_interval(differences)
    p = _compute_p(mean, error, len(differences) - 1)
    return {"difference": mean, "low": interval.low, "high": interval.high, "p": p}


def _compute_p(mean: float, error: float, degrees: int) -> float:
    from scipy.special import stdtr

    if error == 0:
        return 0.0 if mean else 1.0
    return float(2 * stdtr(degrees, -abs(mean / error)))
