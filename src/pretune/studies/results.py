"""Results of a study as plain data, the content of study.json: table, paired tests, verdicts and cost.

The rule of verdicts is fixed before a study runs: at least three seeds; a claim about two rows holds if the mean paired
difference over seeds has the claimed sign and exceeds twice its standard error, it does not hold if it has the other
sign by as much, and is undecided otherwise. It is also undecided if one of its models has hardly a lower pre-training
loss than a unigram model: a difference between models that have not learned to use context says nothing about ideas.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pretune.core.config import get_kind, to_dict
from pretune.core.errors import UsageError, suggest
from pretune.metrics.significance import compute_interval
from pretune.models.devices import DEVICES
from pretune.reports.study_record import (
    BaselineComparison,
    ChosenRate,
    FailedStep,
    MissingCell,
    Outcome,
    PairedDifference,
    StudyCell,
    StudyClaim,
    StudyCost,
    StudyMeasure,
    StudyResults,
    UnigramComparison,
)
from pretune.runs.task_options import FinetuneOptions
from pretune.studies.actions import BASELINE_PREFIX, SIMPLEST_BASELINE, UNIGRAM_LOSS
from pretune.studies.execute import StepFailure
from pretune.studies.plan import STEP_PREFIX, Plan, Reading, collect_inputs
from pretune.studies.spec import MIN_SEEDS, AverageScore, Claim, CostValue, Measure
from pretune.studies.study_dir import COST_NAMES, StepRecord
from pretune.training.validation import PLATEAU_SHARE

Values = dict[tuple[str, str], dict[int, float]]
"""Values by row and measure, then by seed."""
FACTOR = 2.0
"""Standard errors that a difference must exceed."""
ROUNDING = 1e-12
"""Relative difference of two values that are the same but for rounding."""
RULE = (
    f"At least {MIN_SEEDS} seeds. A claim holds if the mean paired difference over seeds has the claimed sign and "
    f"exceeds {FACTOR:g} standard errors; it does not hold if it has the other sign by as much; else it is undecided. "
    "It is undecided too if it rests on a model that has not got beyond word frequencies: one whose validation loss "
    f"of predicted tokens is, in the mean over seeds, above {PLATEAU_SHARE:.0%} of the loss of a unigram model of the "
    "training data."
)


def build_results(plan: Plan, records: Mapping[str, StepRecord], failures: Mapping[str, StepFailure]) -> StudyResults:
    """Return the results of the finished steps; numbers of other steps are missing."""
    values, baselines = collect_values(plan, records), collect_baselines(plan, records)
    check_scores(plan, records, values)
    study, shares = plan.study, collect_unigram_shares(plan, records)
    return {
        **plan.describe_inputs(),
        "source": plan.source or study.name,
        "scale_about": plan.scale.about,
        "reference": plan.reference,
        "measures": [_describe_measure(measure) for measure in plan.measures],
        "table": {
            row.name: {
                measure.name: {
                    **summarize(values[row.name, measure.name], values.get((plan.reference, measure.name), {})),
                    **compare_with_baseline(row.name, measure, values, baselines),
                    **compare_with_unigram(row.name, measure.name, shares),
                }
                for measure in plan.measures
                if values.get((row.name, measure.name))
            }
            for row in plan.rows
        },
        "claims": [judge_claim(plan, claim, values, baselines, shares) for claim in study.claims],
        "rule": RULE,
        "is_tuned": plan.is_tuned,
        "tuned_actions": plan.tuned_actions,
        "rates": to_dict(plan.rates),
        "chosen_rates": list_chosen_rates(plan, records),
        "missing": _list_missing(plan, values),
        "failures": _list_failures(failures),
        "cost": sum_costs(plan, records),
    }


def collect_values(plan: Plan, records: Mapping[str, StepRecord]) -> Values:
    """Return all numbers of the table that are there."""
    values: Values = {}
    for cell in plan.cells:
        for name, reading in cell.readings.items():
            value = read_value(reading, records)
            if value is not None and math.isfinite(value):
                values.setdefault((cell.row, name), {})[cell.seed] = value
    _add_averages(plan, values)
    return values


def _add_averages(plan: Plan, values: Values) -> None:
    """Add the means over measures, of seeds that have all of them."""
    for measure in plan.measures:
        if isinstance(measure.quantity, AverageScore):
            for row in plan.rows:
                members = [values.get((row.name, name), {}) for name in measure.quantity.measures]
                for seed in plan.seeds:
                    if all(seed in member for member in members):
                        mean = sum(member[seed] for member in members) / len(members)
                        values.setdefault((row.name, measure.name), {})[seed] = mean


def collect_baselines(plan: Plan, records: Mapping[str, StepRecord]) -> Values:
    """Return the scores of the simplest baseline on the examples of fine-tuned and few-shot scores, where there is one.

    A fine-tuning has all scores of its baseline, a few-shot evaluation the accuracy.
    """
    baselines: Values = {}
    for cell in plan.cells:
        for name, reading in cell.readings.items():
            if reading.amount is None and reading.step in records:
                record = records[reading.step]
                score = reading.score or next(iter(record["scores"]), "")
                value = record["amounts"].get(f"{BASELINE_PREFIX}{score}")
                if value is None and score == "accuracy":
                    value = record["scores"].get(SIMPLEST_BASELINE)
                if value is not None:
                    baselines.setdefault((cell.row, name), {})[cell.seed] = float(value)
    return baselines


def compare_with_baseline(row: str, measure: Measure, values: Values, baselines: Values) -> BaselineComparison:
    """Return the mean score of the simplest baseline, and whether a row is better; nothing without a baseline."""
    scores, baseline = values.get((row, measure.name), {}), baselines.get((row, measure.name), {})
    if not scores.keys() & baseline.keys():
        return {}
    is_above = is_better(scores, baseline, lower=measure.is_lower_better)
    return {"baseline": sum(baseline.values()) / len(baseline), "is_above_baseline": is_above}


def collect_unigram_shares(plan: Plan, records: Mapping[str, StepRecord]) -> Values:
    """Return the pre-training loss behind every score, relative to the unigram loss.

    Objectives that predict no tokens, such as replaced tokens, have none, and neither have existing weights.
    """
    shares: Values = {}
    for cell in plan.cells:
        for name, reading in cell.readings.items():
            key = find_pretraining(plan, records, reading.step) if reading.amount is None else None
            if key is not None and key in records:
                unigram_loss = records[key]["amounts"].get(UNIGRAM_LOSS)
                perplexity = records[key]["scores"].get("perplexity")
                if unigram_loss and perplexity:
                    shares.setdefault((cell.row, name), {})[cell.seed] = math.log(perplexity) / unigram_loss
    _add_averages(plan, shares)
    return shares


def find_pretraining(plan: Plan, records: Mapping[str, StepRecord], key: str) -> str | None:
    """Return the step whose weights a step is or starts from; None for random and for existing weights."""
    step = plan.steps[key]
    if step.action == "choose":
        return find_pretraining(plan, records, records[key]["selected_key"]) if key in records else None
    if step.action == "pretrain":
        return key
    options = step.options
    if isinstance(options, FinetuneOptions) and "from-scratch" in (options.method or "").split("+"):
        return None
    model = str(getattr(options, "model", None))
    return find_pretraining(plan, records, model.removeprefix(STEP_PREFIX)) if model.startswith(STEP_PREFIX) else None


def compare_with_unigram(row: str, measure: str, shares: Values) -> UnigramComparison:
    """Return the mean share of the unigram loss, and whether it is low enough; nothing without such a loss."""
    by_seed = shares.get((row, measure))
    if not by_seed:
        return {}
    share = sum(by_seed.values()) / len(by_seed)
    return {"unigram_share": share, "is_beyond_unigram": share <= PLATEAU_SHARE}


def read_value(reading: Reading, records: Mapping[str, StepRecord]) -> float | None:
    """Return one number; None if a step is not finished, or if it has no such score or amount."""
    if any(key not in records for key in reading.keys):
        return None
    record = records[reading.step]
    if reading.amount is not None:
        if reading.amount in COST_NAMES:
            keys = [find_paid_step(key, reading.steps, records) for key in reading.steps]
            costs: list[Mapping[str, Any]] = [{**records[key]["cost"]} for key in keys if key in records]
            return sum(float(cost[reading.amount]) for cost in costs) if len(costs) == len(keys) else None
        amount = record["amounts"].get(reading.amount)
        return None if amount is None else float(amount)
    scores = record["scores"]
    return scores.get(next(iter(scores), "") if reading.score is None else reading.score)


def find_paid_step(key: str, steps: Sequence[str], records: Mapping[str, StepRecord]) -> str:
    """Return the step that has the cost of a step: of a choice the selected one, unless it is among the steps."""
    selected_key = records[key].get("selected_key", key)
    return key if selected_key in steps else selected_key


def check_scores(plan: Plan, records: Mapping[str, StepRecord], values: Values) -> None:
    """Raise a UsageError for a score that no row has."""
    for measure in plan.measures:
        readings = [cell.readings[measure.name] for cell in plan.cells if measure.name in cell.readings]
        finished_readings = [reading for reading in readings if reading.amount is None and reading.step in records]
        if finished_readings and not any(values.get((row.name, measure.name)) for row in plan.rows):
            scores, name = records[finished_readings[0].step]["scores"], finished_readings[0].score or ""
            names = ", ".join(scores) or "none"
            raise UsageError(f"measure '{measure.name}': no score '{name}'{suggest(name, scores)} (available: {names})")


def summarize(values: Mapping[int, float], reference: Mapping[int, float]) -> StudyCell:
    """Return mean and interval over seeds, all values, and the paired difference to the reference row."""
    interval = compute_interval([values[seed] for seed in sorted(values)])
    return {
        "mean": interval.mean,
        "std": interval.std,
        "low": interval.low,
        "high": interval.high,
        "values": {str(seed): values[seed] for seed in sorted(values)},
        "against": compare_paired(values, reference),
    }


def judge_claim(plan: Plan, claim: Claim, values: Values, baselines: Values, shares: Values) -> StudyClaim:
    """Return a claim with its verdict; one about cells of another scale, or unfinished ones, is not measured."""
    names = {row.name for row in plan.rows}
    measures = {measure.name: measure for measure in plan.measures}
    result: StudyClaim = {
        "text": claim.text,
        "measure": claim.measure,
        "better": claim.better,
        "worse": claim.worse,
        "against": claim.against or claim.measure,
        "margin": claim.margin,
        "outcome": "not measured",
        "reason": "not in the table of this scale",
    }
    against = result["against"]
    if claim.better not in names or claim.worse not in names or not {claim.measure, against} <= measures.keys():
        return result
    verdict = decide(
        values.get((claim.better, claim.measure), {}),
        values.get((claim.worse, against), {}),
        lower=measures[claim.measure].is_lower_better,
        margin=claim.margin,
    )
    result |= {"difference": verdict.difference, "error": verdict.error, "seeds": verdict.seeds}
    if verdict.seeds == 0:
        return {**result, "reason": "no seed of both rows is finished"}
    sides = (claim.better, measures[claim.measure]), (claim.worse, measures[against])
    comparisons = [compare_with_baseline(row, measure, values, baselines) for row, measure in sides]
    has_learned = any(side.get("is_above_baseline") is not False for side in comparisons)
    if verdict.outcome != "undecided" and count_runs(plan, [(row, measure.name) for row, measure in sides]) < MIN_SEEDS:
        verdict = replace(verdict, outcome="undecided", reason="one pre-training, the same number for all seeds")
    reason = f"{verdict.reason}{'' if has_learned else '; neither is better than the simplest baseline'}"
    plateau_rows = [
        row
        for row, measure in sides
        if compare_with_unigram(row, measure.name, shares).get("is_beyond_unigram") is False
    ]
    if plateau_rows:
        result["plateau_rows"] = [*dict.fromkeys(plateau_rows)]
    return {**result, "outcome": "undecided" if plateau_rows else verdict.outcome, "reason": reason}


def count_runs(plan: Plan, sides: Sequence[tuple[str, str]]) -> int:
    """Return over how many runs the numbers of rows and measures vary, where the study has pre-trained their models.

    Seeds that share a pre-training have the same loss; their number says nothing about its variance.
    """
    steps = {(cell.row, name, cell.seed): r.step for cell in plan.cells for name, r in cell.readings.items()}
    runs = {tuple(steps.get((*side, seed), str(seed)) for side in sides) for seed in plan.seeds}
    keys = collect_inputs(plan.steps, [key for run in runs for key in run if key in plan.steps])
    return len(runs) if any(plan.steps[key].action == "pretrain" for key in keys) else len(plan.seeds)


def list_chosen_rates(plan: Plan, records: Mapping[str, StepRecord]) -> list[ChosenRate]:
    """Return which of the tried learning rates is the best on dev, for each row and choice."""
    choices: list[ChosenRate] = []
    for cell in plan.cells:
        if cell.seed != plan.seeds[0]:
            continue
        for key in collect_inputs(plan.steps, [reading.step for reading in cell.readings.values()]):
            if plan.steps[key].action == "choose" and key in records:
                run = plan.steps[records[key]["selected_key"]]
                choices.append({"row": cell.row, "action": run.action, "label": run.label, "factor": run.rate_factor})
    return choices


def sum_costs(plan: Plan, records: Mapping[str, StepRecord]) -> StudyCost:
    """Return the cost of all steps of the study; steps side by side share the energy and the price of the device."""
    keys = [key for key, step in plan.steps.items() if key in records and step.action != "choose"]
    costs: list[Mapping[str, Any]] = [{**records[key]["cost"]} for key in keys]

    def add(name: str) -> float:
        if name in ("seconds", "flops"):
            return sum((float(cost[name]) for cost in costs), 0.0)
        return sum((float(cost[name]) / (cost.get("overlap") or cost.get("jobs", 1)) for cost in costs), 0.0)

    def add_amounts(name: str) -> float:
        return sum((float(records[key]["amounts"].get(name) or 0.0) for key in keys), 0.0)

    flops = add("flops")
    return {
        "seconds": add("seconds"),
        "flops": flops,
        "kwh": add("kwh"),
        "co2e_kg": add("co2e_kg"),
        "dollars": add("dollars"),
        "cpu_seconds": add_amounts("cpu_seconds"),
        "wall_seconds": add_amounts("total_seconds"),
        "estimated_seconds": plan.sum_estimates().seconds,
        "steps": sum(key in records for key in plan.steps),
        "planned_steps": len(plan.steps),
        "jobs": max((cost.get("jobs", 1) for cost in costs), default=1),
        "devices": sorted({cost["device"] for cost in costs if cost["device"]}),
        "arithmetic_seconds": {name: flops / device.rate for name, device in DEVICES.items()},
    }


def _describe_measure(measure: Measure) -> StudyMeasure:
    quantity = measure.quantity
    return {
        "name": measure.name,
        "kind": get_kind(quantity),
        "better": "lower" if measure.is_lower_better else "higher",
        "amount": quantity.amount if isinstance(quantity, CostValue) else None,
        "curve": measure.curve,
        "x": measure.x,
        "x_label": measure.x_label,
    }


def _list_missing(plan: Plan, values: Values) -> list[MissingCell]:
    """Return the cells with numbers that are planned but not there."""
    return [
        {"row": cell.row, "seed": cell.seed, "measures": names}
        for cell in plan.cells
        if (names := [name for name in cell.readings if cell.seed not in values.get((cell.row, name), {})])
    ]


def _list_failures(failures: Mapping[str, StepFailure]) -> list[FailedStep]:
    """Return the failed steps, without those that only needed one of them."""
    return [
        {"action": failure.step.action, "label": failure.step.label, "message": failure.message}
        for key, failure in failures.items()
        if key == failure.step.key
    ]


# Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict of a claim: the mean difference in the claimed direction, its standard error, and the reason."""

    outcome: Outcome
    difference: float | None
    error: float | None  # standard error; None: fewer than two seeds
    seeds: int
    reason: str


def decide(better: Mapping[int, float], worse: Mapping[int, float], *, lower: bool, margin: float = 0.0) -> Verdict:
    """Return the verdict on the claim that `better` is better than `worse` by more than `margin`.

    Both are values by seed; seeds that only one of them has are left out. With `lower`, smaller values are better.

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
    paired_values = [values[seed] for values in (better, worse) for seed in better.keys() & worse.keys()]
    rounding = ROUNDING * max(map(abs, [*paired_values, margin]))
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
