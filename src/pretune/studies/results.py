"""Results of a study as plain data, the content of study.json: table, paired tests, verdicts and cost.

The rule of verdicts (`verdicts.py`) is fixed before a study runs. A claim is also undecided if one of its models has
hardly a lower pre-training loss than a unigram model: a difference between models that have not learned to use context
says nothing about ideas.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pretune.core.config import get_kind, to_dict
from pretune.core.errors import UsageError, suggest
from pretune.metrics.significance import compute_interval
from pretune.reports.study_record import (
    BaselineComparison,
    ChosenRate,
    FailedStep,
    MissingCell,
    StudyCell,
    StudyClaim,
    StudyMeasure,
    StudyResults,
    UnigramComparison,
)
from pretune.runs.task_options import FinetuneOptions
from pretune.studies.actions import BASELINE_PREFIX, SIMPLEST_BASELINE, TEST_EXAMPLES, UNIGRAM_LOSS
from pretune.studies.costs import sum_costs
from pretune.studies.execute import StepFailure
from pretune.studies.laws import build_law
from pretune.studies.plan import STEP_PREFIX, Plan, Reading, collect_inputs
from pretune.studies.spec import MIN_SEEDS, AverageScore, Claim, CostValue, CurveSaving, Measure, list_points
from pretune.studies.study_dir import COST_NAMES, StepRecord
from pretune.studies.verdicts import (
    FACTOR,
    compare_paired,
    compute_deciding_budget,
    compute_example_error,
    decide,
    is_better,
)
from pretune.training.validation import PLATEAU_SHARE

Values = dict[tuple[str, str], dict[int, float]]
"""Values by row and measure, then by seed."""
RULE = (
    f"At least {MIN_SEEDS} seeds. A claim holds if the mean paired difference over seeds has the claimed sign and "
    f"exceeds {FACTOR:g} standard errors; it does not hold if it has the other sign by as much; else it is undecided. "
    "If a row has one pre-training, the seeds are those of the fine-tuning, the standard error is that of the seeds "
    "and of the test examples together, and the verdict says so. "
    "It is undecided too if it rests on a model that has not got beyond word frequencies: one whose validation loss "
    f"of predicted tokens is, in the mean over seeds, above {PLATEAU_SHARE:.0%} of the loss of a unigram model of the "
    "training data."
)


def build_results(plan: Plan, records: Mapping[str, StepRecord], failures: Mapping[str, StepFailure]) -> StudyResults:
    """Return the results of the finished steps; numbers of other steps are missing."""
    values, baselines = collect_values(plan, records), collect_baselines(plan, records)
    check_scores(plan, records, values)
    study, runs = plan.study, collect_runs(plan, records)
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
                    **compare_with_unigram(row.name, measure.name, runs.shares),
                }
                for measure in plan.measures
                if values.get((row.name, measure.name))
            }
            for row in plan.rows
        },
        "claims": [judge_claim(plan, claim, values, baselines, runs) for claim in study.claims],
        "rule": RULE,
        "is_tuned": plan.is_tuned,
        "tuned_actions": plan.tuned_actions,
        "rates": to_dict(plan.rates),
        "chosen_rates": list_chosen_rates(plan, records),
        "law": build_law(plan, records),
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
    _add_savings(plan, values)
    return values


def _add_savings(plan: Plan, values: Values) -> None:
    """Add the savings along curves, of seeds that have all points of the other row."""
    for measure in plan.measures:
        if isinstance(measure.quantity, CurveSaving):
            start, points = measure.quantity.start, list_points(plan.measures, measure.quantity.line)
            lower = next(other for other in plan.measures if other.name == points[start]).is_lower_better
            for row in plan.rows:
                for seed, score in values.get((row.name, points[start]), {}).items():
                    scores = [values.get((measure.quantity.against, name), {}).get(seed) for name in points.values()]
                    curve = [(x, y) for x, y in zip(points, scores, strict=True) if y is not None]
                    if len(curve) == len(points):
                        saving = find_crossing(curve, score, lower=lower) / start
                        values.setdefault((row.name, measure.name), {})[seed] = saving


def find_crossing(curve: Sequence[tuple[float, float]], score: float, *, lower: bool) -> float:
    """Return the first x at which a curve of points is as good as a score, on a logarithmic axis; at most the last.

    >>> round(find_crossing([(10, 0.5), (1000, 0.7)], 0.6, lower=False))
    100
    """
    sign = -1.0 if lower else 1.0
    for (x, y), (next_x, next_y) in itertools.pairwise([(curve[0][0], -sign * math.inf), *curve]):
        if sign * next_y >= sign * score:
            share = (score - y) / (next_y - y) if math.isfinite(y) else 1.0
            return float(x * (next_x / x) ** share)
    return curve[-1][0]


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


@dataclass(frozen=True, slots=True)
class StudyRuns:
    """Runs behind the scores of a study, by row and measure."""

    shares: Values = field(default_factory=dict)  # pre-training loss relative to the unigram loss, by seed
    pretrainings: dict[tuple[str, str], set[str]] = field(default_factory=dict)  # keys
    blocks: dict[tuple[str, str], dict[int, list[list[float]]]] = field(default_factory=dict)  # scores without each
    examples: dict[tuple[str, str], int] = field(default_factory=dict)  # of the test set

    def count_examples(self, sides: Sequence[tuple[str, str]]) -> int | None:
        """Return the number of test examples of two scores, the smaller one."""
        return min((self.examples[side] for side in sides if side in self.examples), default=None)


def collect_runs(plan: Plan, records: Mapping[str, StepRecord]) -> StudyRuns:
    """Return the pre-training behind every score, its loss, and the scores without blocks of the test examples.

    Objectives that predict no tokens, such as replaced tokens, have no loss to compare, and existing weights neither.
    """
    runs = StudyRuns()
    for cell in plan.cells:
        for name, reading in cell.readings.items():
            if reading.amount is not None or reading.step not in records:
                continue
            place, record = (cell.row, name), records[reading.step]
            score = reading.score or next(iter(record["scores"]), "")
            if score in record.get("blocks", {}):
                runs.blocks.setdefault(place, {})[cell.seed] = [record["blocks"][score]]
                runs.examples[place] = int(record["amounts"].get(TEST_EXAMPLES, 0))
            key = find_pretraining(plan, records, reading.step)
            if key is not None and key in records:
                runs.pretrainings.setdefault(place, set()).add(key)
                unigram_loss = records[key]["amounts"].get(UNIGRAM_LOSS)
                perplexity = records[key]["scores"].get("perplexity")
                if unigram_loss and perplexity:
                    runs.shares.setdefault(place, {})[cell.seed] = math.log(perplexity) / unigram_loss
    _add_averages(plan, runs.shares)
    _add_member_runs(plan, runs)
    return runs


def _add_member_runs(plan: Plan, runs: StudyRuns) -> None:
    """Add the runs behind means over measures; each test set has its part of the mean."""
    for measure in plan.measures:
        match measure.quantity:
            case AverageScore(measures=names):
                pass
            case CurveSaving(line=line, start=start):
                names = (list_points(plan.measures, line)[start],)
            case _:
                continue
        for row in plan.rows:
            members = [(row.name, name) for name in names]
            place, all_blocks = (row.name, measure.name), [runs.blocks.get(member, {}) for member in members]
            if keys := set().union(*(runs.pretrainings.get(member, ()) for member in members)):
                runs.pretrainings[place] = keys
            if isinstance(measure.quantity, CurveSaving):
                continue
            runs.examples[place] = sum(runs.examples.get(member, 0) for member in members)
            for seed in plan.seeds:
                if all(seed in blocks for blocks in all_blocks):
                    strata = [stratum for blocks in all_blocks for stratum in blocks[seed]]
                    runs.blocks.setdefault(place, {})[seed] = [[v / len(members) for v in part] for part in strata]


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


def judge_claim(plan: Plan, claim: Claim, values: Values, baselines: Values, runs: StudyRuns) -> StudyClaim:
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
    sides = (claim.better, claim.measure), (claim.worse, against)
    is_single = min((count for side in sides if (count := len(runs.pretrainings.get(side, ())))), default=2) == 1
    blocks = [runs.blocks.get(side, {}) for side in sides]
    example_error = compute_example_error(*blocks) if is_single else None
    verdict = decide(
        values.get(sides[0], {}),
        values.get(sides[1], {}),
        lower=measures[claim.measure].is_lower_better,
        margin=claim.margin,
        example_error=example_error or 0.0,
    )
    result |= {"difference": verdict.difference, "error": verdict.error, "seeds": verdict.seeds}
    if verdict.seeds == 0:
        return {**result, "reason": "no seed of both rows is finished"}
    comparisons = [compare_with_baseline(row, measures[measure], values, baselines) for row, measure in sides]
    has_learned = any(side.get("is_above_baseline") is not False for side in comparisons)
    if is_single:
        result["is_one_pretraining"] = True
        if verdict.outcome != "undecided" and count_runs(plan, sides) < MIN_SEEDS:
            verdict = replace(verdict, outcome="undecided", reason="one pre-training, the same number for all seeds")
    reason = f"{verdict.reason}{'' if has_learned else '; neither is better than the simplest baseline'}"
    plateau_rows = [
        row
        for row, measure in sides
        if compare_with_unigram(row, measure, runs.shares).get("is_beyond_unigram") is False
    ]
    if plateau_rows:
        result["plateau_rows"] = [*dict.fromkeys(plateau_rows)]
    elif budget := compute_deciding_budget(verdict, runs.count_examples(sides) if is_single else None):
        result["deciding_budget"] = budget
    return {**result, "outcome": "undecided" if plateau_rows else verdict.outcome, "reason": reason}


def count_runs(plan: Plan, sides: Sequence[tuple[str, str]]) -> int:
    """Return over how many runs the numbers of rows and measures vary.

    Seeds that share a pre-training have the same loss; their number says nothing about its variance.
    """
    steps = {(cell.row, name, cell.seed): r.step for cell in plan.cells for name, r in cell.readings.items()}
    return len({tuple(steps.get((*side, seed), str(seed)) for side in sides) for seed in plan.seeds})


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
