"""What a fine-tuning run leaves behind: scores with intervals and baselines, predictions, a model card, its cost."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pretune.core import io, log
from pretune.evaluation.baselines.run import COSINE, NAMES_BY_KIND, BaselineResult, is_similarity, run_baselines
from pretune.metrics.groups import GROUP_METRICS, group_values
from pretune.metrics.significance import Comparison, compute_interval, paired_bootstrap, paired_bootstrap_of_means
from pretune.runs.finetune.config import FinetuneConfig
from pretune.runs.finetune.finetuned_run import SCORES_FILE, FinetunedRun
from pretune.runs.finetune.model_card import build_card
from pretune.runs.finetune.plots import draw_plots
from pretune.runs.finetune.sweep_plan import SweepPlan
from pretune.runs.finetune.task_data import TaskData, compute_scores, index_by_member
from pretune.runs.run_dir import COST_FILE
from pretune.tasks.decode import Prediction, score
from pretune.tasks.example import Example
from pretune.tasks.task import Task

Facts = dict[str, Any]
BaselineFactory = Callable[[Sequence[Example]], BaselineResult | None]
"""A baseline that needs the model, learnt from examples; None where it is not for the task."""
BOOTSTRAP_ROUNDS, MAX_BOOTSTRAP_SECONDS = 1000, 20.0
"""Of a bootstrap, and the seconds that it may take; fewer rounds where a metric is slow."""
SIGNED_METRICS = ("matthews", "pearson", "spearman", "pearson_spearman", "average")
"""Metrics that may be below 0; an interval ends where a metric does."""
SUMMED_COSTS = ("seconds", "flops", "kwh", "co2e_kg", "dollars")


def write_results(
    run_dir: Path,
    tuning: FinetuneConfig,
    plan: SweepPlan,
    task_data: TaskData,
    trials: Sequence[Facts],
    model_baselines: Mapping[str, BaselineFactory],
) -> FinetunedRun:
    """Run the baselines, compare, and write it all; cost.json is the last file."""
    best = [one for one in trials if one["labels"] == max(trial["labels"] for trial in trials)]
    rate = max(best, key=get_dev_score)["lr"]
    chosen = [one for one in best if one["lr"] == rate]
    rows, absent = run_all_baselines(
        task_data, task_data.select_train(plan.max_train_examples, tuning.task.split_seed), plan, model_baselines
    )
    scores = {
        "task": task_data.task.name,
        "kind": task_data.task.kind,
        "metric": task_data.task.metrics[0],
        "notes": [*task_data.parts.notes, *chosen[0].get("notes", ())],
        "examples": {
            "train": chosen[0]["labels"],
            "dev": len(task_data.parts.dev),
            "test": len(task_data.parts.test),
        },
        "pool": dict(task_data.parts.split_sizes),
        "balance": chosen[0]["balance"],
        "counts": chosen[0]["counts"],
        "result": compute_result(task_data, chosen),
        "model": describe_model(chosen),
        "rates": [{"lr": one["lr"], "dev": get_dev_score(one)} for one in best if one["seed"] == plan.seeds[0]],
        "baselines": [compare_baseline(task_data, chosen, row) for row in rows],
        "not_run": absent,
        "curve": compute_learning_curve(task_data, plan, tuning, trials, rate),
        "forgetting": chosen[0].get("forgetting"),
        "trials": [{name: value for name, value in one.items() if name != "said"} for one in trials],
    }
    io.write_json(run_dir / SCORES_FILE, scores)
    draw_plots(run_dir, scores)
    cost = sum_costs([one["summary"]["cost"] for one in trials])
    io.atomic_write(run_dir / "README.md", build_card(run_dir.name, tuning, scores, cost).encode())
    io.write_json(run_dir / COST_FILE, {**cost, "run": {"trials": len(trials)}})
    return FinetunedRun.open(run_dir)


def get_dev_score(trial: Facts) -> float:
    """The official metric on dev."""
    return float(next(iter(trial["scores"]["dev"].values())))


def get_headline_score(task_data: TaskData, trial: Facts) -> float:
    """The official metric on the split that the result is measured on."""
    return float(next(iter(trial["scores"][task_data.headline_split].values())))


def compute_result(task_data: TaskData, trials: Sequence[Facts]) -> Facts:
    """The score: its mean and interval over seeds, and all numbers of the official metric."""
    found = compute_interval([get_headline_score(task_data, one) for one in trials])
    names = trials[0]["scores"][task_data.headline_split]
    means = {name: sum(one["scores"][task_data.headline_split][name] for one in trials) / len(trials) for name in names}
    return {
        "split": task_data.headline_split,
        "examples": len(task_data.eval_examples),
        "score": found.mean,
        "std": found.std,
        "low": None
        if found.low is None
        else max(found.low, -1.0 if task_data.task.metrics[0] in SIGNED_METRICS else 0.0),
        "high": None if found.high is None else min(found.high, 1.0),
        "seeds": [one["seed"] for one in trials],
        "each": [get_headline_score(task_data, one) for one in trials],
        "dev": sum(map(get_dev_score, trials)) / len(trials),
        "scores": means,
    }


def describe_model(trials: Sequence[Facts]) -> Facts:
    """Which trial's model lies in the directory: the best on dev."""
    best = max(trials, key=get_dev_score)
    kept = ("lr", "seed", "labels", "steps", "best_step", "trained", "parameters", "memory", "threshold")
    return {**{name: best[name] for name in kept}, "dev": get_dev_score(best), "scores": best["scores"]}


def run_all_baselines(
    task_data: TaskData, train: Sequence[Example], plan: SweepPlan, model_baselines: Mapping[str, BaselineFactory]
) -> tuple[list[BaselineResult], dict[str, str]]:
    """All that were asked for, on the split of the result; `more` are those that need the model itself."""
    apart = [] if is_similarity(task_data.task, task_data.eval_examples) else [COSINE]
    if names := [name for name in plan.baselines if name not in apart]:
        own = NAMES_BY_KIND.get(task_data.task.kind, {})
        log.info(f"baselines: {', '.join(own.get(name, name) for name in names)}")
    rows, absent = run_simple_baselines(task_data, train, plan.baselines, plan.vectors)
    for name, fit in model_baselines.items():
        if name in plan.baselines and name not in apart:
            row = fit(train)
            if row is None:
                absent[name] = f"it is not for this base, or for tasks of the kind '{task_data.task.kind}'"
                continue
            absent.pop(name, None)
            rows.append(row)
    return rows, absent


def run_simple_baselines(
    task_data: TaskData, train: Sequence[Example], names: Sequence[str], vectors: str | None = None
) -> tuple[list[BaselineResult], dict[str, str]]:
    """The baselines of a task; of several, those that all of them have."""
    if not task_data.members:
        return run_baselines(task_data.task, train, task_data.eval_examples, names, vectors=vectors)
    judged = task_data.eval_examples
    absent: dict[str, str] = {}
    found: dict[str, list[tuple[list[int], BaselineResult]]] = {}
    for member, learnt, mine in zip(
        task_data.members, index_by_member(task_data, train), index_by_member(task_data, judged), strict=True
    ):
        some, asked = [train[at] for at in learnt], [judged[at] for at in mine]
        rows, without = run_baselines(member.task, some, asked, names, vectors=vectors)
        absent |= without
        for row in rows:
            found.setdefault(row.slot or row.name, []).append((mine, row))
    made: list[BaselineResult] = []
    for slot, each in found.items():
        own = {row.name for _, row in each}
        name = own.pop() if len(own) == 1 else slot
        if len(each) < len(task_data.members):
            absent[name] = "not all of these tasks have it"
            continue
        said = {at: one for mine, row in each for at, one in zip(mine, row.predictions, strict=True)}
        seconds = sum(row.seconds for _, row in each)
        ordered = [said[at] for at in range(len(judged))]
        made.append(BaselineResult(name=name, description=each[0][1].description, predictions=ordered, seconds=seconds))
    return made, absent


def read_predictions(trial: Facts, split: str) -> list[Prediction]:
    """What a trial said of a split, as far as metrics ask for it."""
    said: list[dict[str, Any]] = trial["said"][split]
    found: list[dict[str, Any]] = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in one.items()} for one in said
    ]
    return [Prediction(**one) for one in found]


def compare_baseline(task_data: TaskData, trials: Sequence[Facts], row: BaselineResult) -> Facts:
    """A baseline's scores, and by how much the runs are better on the same examples."""
    scores = compute_scores(task_data, task_data.eval_examples, row.predictions)
    ours = [read_predictions(one, task_data.headline_split) for one in trials]
    return {
        "name": row.name,
        "about": row.description,
        "score": next(iter(scores.values())),
        "scores": scores,
        "seconds": round(row.seconds, 3),
        "against": asdict(bootstrap(task_data, ours, row.predictions)),
    }


def bootstrap(
    task_data: TaskData, predictions: Sequence[Sequence[Prediction]], baseline_predictions: Sequence[Prediction]
) -> Comparison:
    """The paired bootstrap; with scores of single examples where the metric is a mean of them.

    Where a question with all its answers is judged as one, questions are drawn.
    """
    task, examples = task_data.task, task_data.eval_examples
    if task.metrics[0] in ("accuracy", "choice_accuracy", "squad", "squad2", "exact_match", "rouge", "rouge_stemmed"):
        each = [
            [_score_example(task, example, run[i]) for i, example in enumerate(examples)]
            for run in (*predictions, baseline_predictions)
        ]
        means = [sum(column) / len(predictions) for column in zip(*each[:-1], strict=True)]
        return paired_bootstrap_of_means(means, each[-1])

    def metric(gold: Sequence[Example], said: Sequence[Prediction]) -> float:
        return float(next(iter(compute_scores(task_data, gold, said).values())))

    begun = time.perf_counter()
    metric(examples, baseline_predictions)
    took = (time.perf_counter() - begun) * (len(predictions) + 1)
    rounds = max(min(BOOTSTRAP_ROUNDS, int(MAX_BOOTSTRAP_SECONDS / max(took, 1e-6))), 100)
    if task.metrics[0] not in GROUP_METRICS:
        return paired_bootstrap(examples, predictions, [baseline_predictions], metric, rounds=rounds)
    groups = [example.group or f"\0{at}" for at, example in enumerate(examples)]

    def whole(drawn: Sequence[Sequence[Example]], said: Sequence[Sequence[Prediction]]) -> float:
        told = [replace(one, group=str(at)) for at, group in enumerate(drawn) for one in group]  # drawn twice: twice
        return metric(told, [one for group in said for one in group])

    units = [group_values(run, groups) for run in (*predictions, baseline_predictions)]
    return paired_bootstrap(group_values(examples, groups), units[:-1], units[-1:], whole, rounds=rounds)


def _score_example(task: Task, example: Example, prediction: Prediction) -> float:
    return float(next(iter(score(task, [example], [prediction]).values())))


def compute_learning_curve(
    task_data: TaskData, plan: SweepPlan, tuning: FinetuneConfig, trials: Sequence[Facts], rate: float
) -> list[Facts]:
    """The result by number of labels, with the baselines learnt from the same examples; nothing for one number."""
    counts = sorted({one["labels"] for one in trials})
    found: list[Facts] = []
    for count in counts if len(counts) > 1 else []:
        some = [one for one in trials if one["labels"] == count and one["lr"] == rate]
        rows, _ = run_simple_baselines(task_data, task_data.select_train(count, tuning.task.split_seed), plan.baselines)
        beneath = {row.name: _score_baseline(task_data, row) for row in rows}
        found.append({"labels": count, **compute_result(task_data, some), "baselines": beneath})
    return found


def _score_baseline(task_data: TaskData, row: BaselineResult) -> float:
    return float(next(iter(compute_scores(task_data, task_data.eval_examples, row.predictions).values())))


def sum_costs(costs: Sequence[Mapping[str, Any]]) -> Facts:
    """The cost of all trials together; what is not a sum is the first one's."""
    found = dict(costs[0])
    for name in SUMMED_COSTS:
        found[name] = sum(cost[name] for cost in costs)
    peak = found.get("peak_flops")
    found["mfu"] = found["flops"] / (found["seconds"] * peak) if peak and found["seconds"] else None
    parts: dict[str, dict[str, Any]] = {}
    for cost in costs:
        for part in cost["energy"]:
            one = parts.setdefault(part["what"], {**part, "joules": 0.0})
            one["joules"] += part["joules"]
    found["energy"] = [*parts.values()]
    return found
