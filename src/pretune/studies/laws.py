"""Laws of a study: its loss by parameters and tokens, fitted to runs, and compared with runs that are left out.

    loss = floor + size / parameters ^ size_power + tokens / tokens read ^ tokens_power          (Hoffmann et al., 2022)

This is the law of recipes (`runs/recipes/fits.json`): parameters are those of the blocks, and repeated tokens count
less than new ones. For given powers it is linear, so only the two powers are searched; errors are relative to the loss
of a run. Intervals are those of a bootstrap: the fit is repeated with runs that are drawn with replacement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pretune.reports.study_record import LawPoint, StudyLaw
from pretune.runs.recipes.plan import Fit, compute_loss, count_block_parameters, count_effective_tokens
from pretune.studies.actions import EPOCHS
from pretune.studies.plan import Plan
from pretune.studies.study_dir import StepRecord

MIN_RUNS = 6
"""Runs that a fit needs: one more than the law has numbers."""
DRAWS, INTERVAL = 200, (2.5, 97.5)
"""Draws of the bootstrap, and percentiles of their interval."""
POWERS = (0.05, 1.5)
"""Smallest and largest power."""
STARTS = ((0.25, 0.3), (0.5, 0.5), (0.25, 0.9), (0.9, 0.3))
"""Powers from which the search starts."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LawRun:
    """A finished run: the parameters of its blocks, the new tokens that its tokens are worth, and its loss."""

    parameters: float
    tokens: float
    loss: float

    def predict(self, law: Fit) -> float:
        """Return the loss that a law expects."""
        return compute_loss(law, self.parameters, self.tokens)


def can_fit(runs: Sequence[LawRun]) -> bool:
    """Return whether runs are enough for a fit, with two sizes and two numbers of tokens at least."""
    return len(runs) >= MIN_RUNS and min(len({r.parameters for r in runs}), len({r.tokens for r in runs})) > 1


def fit_law(runs: Sequence[LawRun], starts: Sequence[Sequence[float]] = STARTS) -> Fit:
    """Return the law with the least squared relative error; none of its numbers is negative."""
    from scipy.optimize import minimize

    searches = [
        minimize(lambda powers: _solve(runs, powers)[1], start, method="Nelder-Mead", bounds=[POWERS, POWERS])
        for start in starts
    ]
    size_power, tokens_power = map(float, min(searches, key=lambda search: float(search.fun)).x)
    floor, size, tokens = map(float, _solve(runs, (size_power, tokens_power))[0])
    return {"floor": floor, "size": size, "size_power": size_power, "tokens": tokens, "tokens_power": tokens_power}


def _solve(runs: Sequence[LawRun], powers: Sequence[float]) -> tuple[Floats, float]:
    """Return floor, size and tokens for two powers, and the error."""
    from scipy.optimize import nnls

    values = np.array([[run.parameters, run.tokens, run.loss] for run in runs])
    columns = np.column_stack([np.ones(len(runs)), values[:, 0] ** -powers[0], values[:, 1] ** -powers[1]])
    scales = columns.max(axis=0)
    factors, error = nnls(columns / scales / values[:, 2:], np.ones(len(runs)))
    return factors / scales, float(error)


def bootstrap_laws(runs: Sequence[LawRun], law: Fit, draws: int = DRAWS) -> list[Fit]:
    """Return the laws of runs that are drawn with replacement; the same runs give the same draws."""
    rng, laws = np.random.default_rng(0), list[Fit]()
    while len(laws) < draws:
        sample = [runs[index] for index in rng.integers(len(runs), size=len(runs))]
        if can_fit(sample):
            laws.append(fit_law(sample, [(law["size_power"], law["tokens_power"])]))
    return laws


def build_law(plan: Plan, records: Mapping[str, StepRecord]) -> StudyLaw | None:
    """Return the law of a study over its finished runs; None without one, or with too few runs."""
    settings = plan.study.law
    if settings is None:
        return None
    rows = {reading.step: cell.row for cell in plan.cells if (reading := cell.readings.get(settings.loss))}
    runs = [(row, run) for key, row in rows.items() if (run := _read_run(plan, records, key)) is not None]
    fitted_runs = [run for row, run in runs if row not in settings.checks]
    if not can_fit(fitted_runs):
        return None
    law = fit_law(fitted_runs)
    draws = bootstrap_laws(fitted_runs, law)
    points: list[LawPoint] = []
    for row, run in runs:
        low, high = np.percentile([run.predict(draw) for draw in draws], INTERVAL)
        points.append(
            LawPoint(
                row=row,
                is_check=row in settings.checks,
                parameters=run.parameters,
                tokens=run.tokens,
                loss=run.loss,
                expected=run.predict(law),
                low=float(low),
                high=float(high),
            )
        )
    coefficients: dict[str, list[float]] = {}
    for name in law:
        value, *bootstrap_values = (float(fit[name]) for fit in (law, *draws))  # type: ignore[literal-required]
        coefficients[name] = [value, *map(float, np.percentile(bootstrap_values, INTERVAL))]
    return {"loss": settings.loss, "coefficients": coefficients, "points": points}


def _read_run(plan: Plan, records: Mapping[str, StepRecord], key: str) -> LawRun | None:
    """Return the run of a pre-training; None if it is not finished."""
    model = plan.steps[key].model
    if key not in records or model is None:
        return None
    amounts, loss = records[key]["amounts"], records[key]["scores"].get("loss")
    tokens, epochs = amounts.get("tokens"), amounts.get(EPOCHS)
    if not loss or not tokens or not epochs:
        return None
    effective_tokens = count_effective_tokens(tokens, round(tokens / epochs))
    return LawRun(parameters=count_block_parameters(model), tokens=effective_tokens, loss=loss)
