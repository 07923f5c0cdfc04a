"""Results of a fine-tuning run: baselines, comparisons, learning curve, scores and cost."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from pretune.core import io, log
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.log import format_count
from pretune.core.run_dir import RunDir
from pretune.evaluation.baselines import (
    COSINE,
    FEW_SHOT,
    SLOTS,
    ZERO_SHOT,
    BaselineResult,
    get_baseline_name,
    is_similarity,
    run_baselines,
)
from pretune.metrics import GROUP_METRICS, MEAN_METRICS, SIGNED_METRICS, get_headline
from pretune.metrics.classification import group_values
from pretune.metrics.significance import Comparison, compute_interval, paired_bootstrap, paired_bootstrap_of_means
from pretune.runs.finetune.config import MIN_STEPS, FinetuneConfig, SweepPlan
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.task_data import TaskData, compute_scores
from pretune.runs.model_card import build_finetuning_card, draw_plots
from pretune.tasks.example import Example, Prediction
from pretune.tasks.task import Task
from pretune.tasks.types import get_type, score
from pretune.training.records import (
    BaselineRecord,
    CostFile,
    CurvePoint,
    Difference,
    EnergyRecord,
    ResultRecord,
    SampleRecord,
    SavedModelRecord,
    ScoresFile,
    TrialFile,
    TrialRecord,
)

BaselineFactory = Callable[[Sequence[Example]], BaselineResult | None]
"""Baseline that needs the model, fitted on examples; returns None if the task does not support it."""
MAX_SAMPLES = 8
"""Examples whose answers before and after are written down."""
BOOTSTRAP_ROUNDS, MAX_BOOTSTRAP_SECONDS = 1000, 20.0
"""Rounds of a bootstrap and its maximum seconds; slow metrics get fewer rounds."""
SUMMED_COSTS: Final = ("seconds", "flops", "kwh", "co2e_kg", "dollars")


def write_results(
    run_dir: RunDir,
    tuning: FinetuneConfig,
    plan: SweepPlan,
    task_data: TaskData,
    trials: Sequence[TrialFile],
    model_baselines: Mapping[str, BaselineFactory],
) -> FinetunedRun:
    """Run the baselines, compare, and write all results; cost.json is the last file."""
    best = [trial for trial in trials if trial["labels"] == max(other["labels"] for other in trials)]
    rate = max(best, key=get_dev_score)["lr"]
    selection = [trial for trial in best if trial["lr"] == rate]
    train = task_data.select_train(plan.max_train_examples, tuning.task.split_seed)
    rows, absent = run_all_baselines(task_data, train, plan, model_baselines)
    collapse_notes = [find_collapse(task_data, trial) for trial in selection]
    scores: ScoresFile = {
        "task": task_data.task.name,
        "kind": task_data.task.kind,
        "metric": task_data.task.metrics[0],
        "notes": [*task_data.parts.notes, *selection[0].get("notes", ()), *filter(None, collapse_notes)],
        "examples": {
            "train": selection[0]["labels"],
            "dev": len(task_data.parts.dev),
            "test": len(task_data.parts.test),
        },
        "pool": dict(task_data.parts.split_sizes),
        "balance": selection[0]["balance"],
        "counts": selection[0]["counts"],
        "result": compute_result(task_data, selection),
        "model": describe_model(selection),
        "rates": [{"lr": trial["lr"], "dev": get_dev_score(trial)} for trial in best if trial["seed"] == plan.seeds[0]],
        "baselines": [compare_baseline(task_data, selection, row) for row in rows],
        "not_run": absent,
        "curve": compute_learning_curve(task_data, plan, tuning, trials, rate),
        "forgetting": selection[0].get("forgetting"),
        "trials": [_drop_predictions(trial) for trial in trials],
    }
    for row in rows:
        if row.name == ZERO_SHOT and get_type(task_data.task).scoring.gold == "text":
            scores["samples"] = collect_samples(task_data, selection[0], row)
    io.write_json(run_dir.scores, scores)
    draw_plots(run_dir.path, scores)
    cost = sum_costs([trial["summary"]["cost"] for trial in trials])
    io.atomic_write(run_dir.card, build_finetuning_card(run_dir.name, tuning, scores, cost).encode())
    run_dir.write_cost({"trials": len(trials), "cost": cost})
    return FinetunedRun.open(run_dir.path)


def collect_samples(task_data: TaskData, trial: TrialFile, baseline: BaselineResult) -> list[SampleRecord]:
    """Return some inputs with their reference and the answers before and after fine-tuning."""
    tuned_predictions = read_predictions(trial, task_data.headline_split)
    answers = zip(task_data.eval_examples, baseline.predictions, tuned_predictions, strict=True)
    return [
        {"input": example.text, "gold": example.target or "", "before": first.text or "", "after": second.text or ""}
        for example, first, second in islice(answers, MAX_SAMPLES)
    ]


def get_dev_score(trial: TrialFile) -> float:
    """Return the official metric on dev."""
    return get_headline(trial["scores"]["dev"])


def compute_result(task_data: TaskData, trials: Sequence[TrialFile]) -> ResultRecord:
    """Return the mean score with its interval over seeds, and all values of the official metric."""
    split = task_data.headline_split
    values = [get_headline(trial["scores"][split]) for trial in trials]
    interval, minimum, maximum = compute_interval(values), 0.0, 1.0
    if get_type(task_data.task).scoring.is_reward:
        minimum, maximum = -math.inf, math.inf
    elif task_data.task.metrics[0] in SIGNED_METRICS:
        minimum = -1.0
    names = trials[0]["scores"][split]
    means = {name: sum(trial["scores"][split][name] for trial in trials) / len(trials) for name in names}
    return {
        "split": split,
        "examples": len(task_data.eval_examples),
        "score": interval.mean,
        "std": interval.std,
        "low": None if interval.low is None else max(interval.low, minimum),
        "high": None if interval.high is None else min(interval.high, maximum),
        "seeds": [trial["seed"] for trial in trials],
        "each": values,
        "dev": sum(map(get_dev_score, trials)) / len(trials),
        "scores": means,
    }


def find_collapse(task_data: TaskData, trial: TrialFile) -> str | None:
    """Return a note on a model that predicts the same for all examples, with advice; None for any other."""
    task, split = task_data.task, task_data.headline_split
    answers, gold = (
        {answer for part in parts for answer in _list_answers(task, part)}
        for parts in (read_predictions(trial, split), task_data.eval_examples)
    )
    if len(answers) != 1 or len(gold) < 2:
        return None
    name = answers.pop()
    steps = format_count(trial["steps"], "steps")
    is_short = trial["steps"] < MIN_STEPS
    advice = f"{steps} are few: train longer (--steps N)" if is_short else "compare learning rates (--lr A,B,C)"
    size = format_count(len(task_data.eval_examples), "examples")
    answer = f"only '{name[:40]}'" if name else "no label"
    return f"the model predicts {answer} for all {size} of {split} (seed {trial['seed']}); {advice}"


def _list_answers(task: Task, part: Example | Prediction) -> list[str]:
    """Return the labels, tags or sets of labels of an example or a prediction; empty for other answers."""
    match get_type(task).scoring.gold:
        case "class" if part.label is not None:
            return [task.labels[int(part.label)]]
        case "tags" | "tree":
            return list(part.tags)
        case "labels":
            return [", ".join(part.tags)]
    return []


def describe_model(trials: Sequence[TrialFile]) -> SavedModelRecord:
    """Describe the trial whose model was saved: the best on dev."""
    best = max(trials, key=get_dev_score)
    return {
        "lr": best["lr"],
        "seed": best["seed"],
        "labels": best["labels"],
        "steps": best["steps"],
        "best_step": best["best_step"],
        "trained": best["trained"],
        "parameters": best["parameters"],
        "memory": best["memory"],
        "threshold": best["threshold"],
        "dev": get_dev_score(best),
        "scores": best["scores"],
    }


def _drop_predictions(trial: TrialFile) -> TrialRecord:
    return cast(TrialRecord, {name: value for name, value in trial.items() if name != "predictions"})


def run_all_baselines(
    task_data: TaskData, train: Sequence[Example], plan: SweepPlan, model_baselines: Mapping[str, BaselineFactory]
) -> tuple[list[BaselineResult], dict[str, str]]:
    """Run all requested baselines on the headline split; `model_baselines` need the model itself."""
    unsupported_names = [] if is_similarity(task_data.task, task_data.eval_examples) else [COSINE]
    tasks = [member.task for member in task_data.members] or [task_data.task]
    type_slots = (*SLOTS, ZERO_SHOT, FEW_SHOT)
    unsupported_names += [
        slot for slot in type_slots if any(slot not in get_type(task).scoring.baselines for task in tasks)
    ]
    if names := [name for name in plan.baselines if name not in unsupported_names]:
        log.info(f"baselines: {', '.join(get_baseline_name(task_data.task, name) for name in names)}")
    rows, absent = run_simple_baselines(task_data, train, plan.baselines, plan.vectors)
    for name, fit in model_baselines.items():
        if name in plan.baselines and name not in unsupported_names:
            try:
                row = fit(train)
            except (UsageError, DataError, CheckpointError) as error:  # a baseline must not end a trained run
                log.warn(f"baseline '{name}': {error}")
                absent[name] = str(error)
                continue
            if row is None:
                absent[name] = f"not supported for this base or for {task_data.task.kind} tasks"
                continue
            absent.pop(name, None)
            rows.append(row)
    return rows, absent


def run_simple_baselines(
    task_data: TaskData, train: Sequence[Example], names: Sequence[str], vectors: str | None = None
) -> tuple[list[BaselineResult], dict[str, str]]:
    """Run the simple baselines of a task; for several tasks, those that all of them support.

    Without the file of `vectors`, which was there before training, their baseline is left out.
    """
    if vectors is not None and not Path(vectors).is_file():
        log.warn(f"baseline 'vectors': {vectors} was deleted during the run")
        names, vectors = [name for name in names if name != "vectors"], None
    if not task_data.members:
        return run_baselines(task_data.task, train, task_data.eval_examples, names, vectors=vectors)
    eval_examples = task_data.eval_examples
    absent: dict[str, str] = {}
    results_by_slot: dict[str, list[tuple[list[int], BaselineResult]]] = {}
    for (member, train_places), (_, mine) in zip(
        task_data.index_examples(train), task_data.index_examples(eval_examples), strict=True
    ):
        member_train, member_eval = [train[place] for place in train_places], [eval_examples[place] for place in mine]
        rows, member_absent = run_baselines(member.task, member_train, member_eval, names, vectors=vectors)
        absent |= member_absent
        for row in rows:
            results_by_slot.setdefault(row.slot or row.name, []).append((mine, row))
    combined_results: list[BaselineResult] = []
    for slot, members in results_by_slot.items():
        names_used = {row.name for _, row in members}
        name = names_used.pop() if len(names_used) == 1 else slot
        if len(members) < len(task_data.members):
            absent[name] = "not supported by all of these tasks"
            continue
        predictions = {
            place: prediction for mine, row in members for place, prediction in zip(mine, row.predictions, strict=True)
        }
        seconds = sum(row.seconds for _, row in members)
        sorted_predictions = [predictions[place] for place in range(len(eval_examples))]
        combined_results.append(
            BaselineResult(
                name=name, description=members[0][1].description, predictions=sorted_predictions, seconds=seconds
            )
        )
    return combined_results, absent


def read_predictions(trial: TrialFile, split: str) -> list[Prediction]:
    """Read a trial's predictions on a split."""
    records: list[dict[str, Any]] = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
        for record in trial["predictions"][split]
    ]
    return [Prediction(**record) for record in records]


def compare_baseline(task_data: TaskData, trials: Sequence[TrialFile], row: BaselineResult) -> BaselineRecord:
    """Return a baseline's scores, and the difference of the runs on the same examples."""
    scores = {**compute_scores(task_data, task_data.eval_examples, row.predictions), **row.scores}
    ours = [read_predictions(trial, task_data.headline_split) for trial in trials]
    return {
        "name": row.name,
        "about": row.description,
        "score": next(iter(scores.values())),
        "scores": scores,
        "seconds": round(row.seconds, 3),
        "against": cast(Difference, asdict(bootstrap(task_data, ours, row.predictions))),
    }


def bootstrap(
    task_data: TaskData, predictions: Sequence[Sequence[Prediction]], baseline_predictions: Sequence[Prediction]
) -> Comparison:
    """Run the paired bootstrap, on scores of single examples if the metric is their mean.

    Metrics that score a question with all its answers resample questions.
    """
    task, examples = task_data.task, task_data.eval_examples
    if task.metrics[0] in MEAN_METRICS or get_type(task).scoring.is_reward:
        example_scores = [
            [get_headline(score(task, [example], [run[i]])) for i, example in enumerate(examples)]
            for run in (*predictions, baseline_predictions)
        ]
        means = [sum(column) / len(predictions) for column in zip(*example_scores[:-1], strict=True)]
        return paired_bootstrap_of_means(means, example_scores[-1])

    metric = partial(compute_scores, task_data)
    start = time.perf_counter()
    metric(examples, baseline_predictions)
    took = (time.perf_counter() - start) * (len(predictions) + 1)
    rounds = max(min(BOOTSTRAP_ROUNDS, int(MAX_BOOTSTRAP_SECONDS / max(took, 1e-6))), 100)
    if task.metrics[0] not in GROUP_METRICS:
        return paired_bootstrap(examples, predictions, [baseline_predictions], metric, rounds=rounds)
    groups = [example.group or f"\0{place}" for place, example in enumerate(examples)]

    def group_metric(
        example_groups: Sequence[Sequence[Example]], prediction_groups: Sequence[Sequence[Prediction]]
    ) -> dict[str, float]:
        numbered_groups = enumerate(example_groups)  # groups drawn twice count twice
        flat_examples = [replace(example, group=str(number)) for number, group in numbered_groups for example in group]
        return metric(flat_examples, [prediction for group in prediction_groups for prediction in group])

    units = [group_values(run, groups) for run in (*predictions, baseline_predictions)]
    return paired_bootstrap(group_values(examples, groups), units[:-1], units[-1:], group_metric, rounds=rounds)


def compute_learning_curve(
    task_data: TaskData, plan: SweepPlan, tuning: FinetuneConfig, trials: Sequence[TrialFile], rate: float
) -> list[CurvePoint]:
    """Return the result by training set size, with baselines on the same examples; empty for a single size."""
    counts = sorted({trial["labels"] for trial in trials})
    points: list[CurvePoint] = []
    for count in counts if len(counts) > 1 else []:
        subset = [trial for trial in trials if trial["labels"] == count and trial["lr"] == rate]
        train = task_data.select_train(count, tuning.task.split_seed)
        rows, _ = run_simple_baselines(task_data, train, plan.baselines, plan.vectors)
        eval_examples = task_data.eval_examples
        baseline_scores = {
            row.name: get_headline(compute_scores(task_data, eval_examples, row.predictions)) for row in rows
        }
        points.append({"labels": count, **compute_result(task_data, subset), "baselines": baseline_scores})
    return points


def sum_costs(costs: Sequence[CostFile]) -> CostFile:
    """Sum the cost of all trials; other values are those of the first."""
    total = costs[0].copy()
    for name in SUMMED_COSTS:
        total[name] = sum(cost[name] for cost in costs)
    peak = total.get("peak_flops")
    total["mfu"] = total["flops"] / (total["seconds"] * peak) if peak and total["seconds"] else None
    parts: dict[str, EnergyRecord] = {}
    for cost in costs:
        for part in cost["energy"]:
            entry = parts.setdefault(part["what"], {**part, "joules": 0.0})
            entry["joules"] += part["joules"]
    total["energy"] = [*parts.values()]
    return total
