"""What a fine-tuning run leaves behind: scores with intervals and baselines, predictions, a model card, its cost."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pretune.core import io, log
from pretune.evaluation.baselines.run import COSINE, OWN_NAMES, Beside, beside, is_similarity
from pretune.metrics.groups import GROUPED, by_group
from pretune.metrics.significance import Comparison, against, of_means, over_seeds
from pretune.runs.finetune.config import Tuning
from pretune.runs.finetune.finetuned_run import SCORES, FineTuned
from pretune.runs.finetune.model_card import card
from pretune.runs.finetune.plots import draw
from pretune.runs.finetune.sweep_plan import Plan
from pretune.runs.finetune.task_data import Opened, owned, scored
from pretune.runs.run_dir import COST
from pretune.tasks.decode import Prediction, score
from pretune.tasks.example import Example
from pretune.tasks.task import Task

Facts = dict[str, Any]
Fitted = Callable[[Sequence[Example]], Beside | None]
"""A baseline that needs the model, learnt from examples; None where it is not for the task."""
ROUNDS, PATIENCE = 1000, 20.0
"""Of a bootstrap, and the seconds that it may take; fewer rounds where a metric is slow."""
SIGNED = ("matthews", "pearson", "spearman", "pearson_spearman", "average")
"""Metrics that may be below 0; an interval ends where a metric does."""
SUMMED = ("seconds", "flops", "kwh", "co2e_kg", "dollars")


def finish(
    where: Path,
    tuning: Tuning,
    plan: Plan,
    opened: Opened,
    trials: Sequence[Facts],
    more: Mapping[str, Fitted],
) -> FineTuned:
    """Run the baselines, compare, and write it all; cost.json is the last file."""
    best = [one for one in trials if one["labels"] == max(trial["labels"] for trial in trials)]
    rate = max(best, key=dev_of)["lr"]
    chosen = [one for one in best if one["lr"] == rate]
    rows, absent = baselines(opened, opened.limited(plan.most, tuning.task.split), plan, more)
    scores = {
        "task": opened.task.name,
        "kind": opened.task.kind,
        "metric": opened.task.metrics[0],
        "notes": [*opened.parts.notes, *chosen[0].get("notes", ())],
        "examples": {
            "train": chosen[0]["labels"],
            "dev": len(opened.parts.dev),
            "test": len(opened.parts.test),
        },
        "pool": dict(opened.parts.pool),
        "balance": chosen[0]["balance"],
        "counts": chosen[0]["counts"],
        "result": result(opened, chosen),
        "model": model_of(chosen),
        "rates": [{"lr": one["lr"], "dev": dev_of(one)} for one in best if one["seed"] == plan.seeds[0]],
        "baselines": [compared(opened, chosen, row) for row in rows],
        "not_run": absent,
        "curve": curve(opened, plan, tuning, trials, rate),
        "forgetting": chosen[0].get("forgetting"),
        "trials": [{name: value for name, value in one.items() if name != "said"} for one in trials],
    }
    io.write_json(where / SCORES, scores)
    draw(where, scores)
    cost = summed([one["summary"]["cost"] for one in trials])
    io.atomic_write(where / "README.md", card(where.name, tuning, scores, cost).encode())
    io.write_json(where / COST, {**cost, "run": {"trials": len(trials)}})
    return FineTuned.open(where)


def dev_of(trial: Facts) -> float:
    """The official metric on dev."""
    return float(next(iter(trial["scores"]["dev"].values())))


def headline_of(opened: Opened, trial: Facts) -> float:
    """The official metric on the split that the result is measured on."""
    return float(next(iter(trial["scores"][opened.headline].values())))


def result(opened: Opened, chosen: Sequence[Facts]) -> Facts:
    """The score: its mean and interval over seeds, and all numbers of the official metric."""
    found = over_seeds([headline_of(opened, one) for one in chosen])
    names = chosen[0]["scores"][opened.headline]
    means = {name: sum(one["scores"][opened.headline][name] for one in chosen) / len(chosen) for name in names}
    return {
        "split": opened.headline,
        "examples": len(opened.judged),
        "score": found.mean,
        "std": found.std,
        "low": None if found.low is None else max(found.low, -1.0 if opened.task.metrics[0] in SIGNED else 0.0),
        "high": None if found.high is None else min(found.high, 1.0),
        "seeds": [one["seed"] for one in chosen],
        "each": [headline_of(opened, one) for one in chosen],
        "dev": sum(map(dev_of, chosen)) / len(chosen),
        "scores": means,
    }


def model_of(chosen: Sequence[Facts]) -> Facts:
    """Which trial's model lies in the directory: the best on dev."""
    best = max(chosen, key=dev_of)
    kept = ("lr", "seed", "labels", "steps", "best_step", "trained", "parameters", "memory", "threshold")
    return {**{name: best[name] for name in kept}, "dev": dev_of(best), "scores": best["scores"]}


def baselines(
    opened: Opened, train: Sequence[Example], plan: Plan, more: Mapping[str, Fitted]
) -> tuple[list[Beside], dict[str, str]]:
    """All that were asked for, on the split of the result; `more` are those that need the model itself."""
    apart = [] if is_similarity(opened.task, opened.judged) else [COSINE]
    if names := [name for name in plan.baselines if name not in apart]:
        own = OWN_NAMES.get(opened.task.kind, {})
        log.say(f"baselines: {', '.join(own.get(name, name) for name in names)}")
    rows, absent = simple(opened, train, plan.baselines, plan.vectors)
    for name, fit in more.items():
        if name in plan.baselines and name not in apart:
            row = fit(train)
            if row is None:
                absent[name] = f"it is not for this base, or for tasks of the kind '{opened.task.kind}'"
                continue
            absent.pop(name, None)
            rows.append(row)
    return rows, absent


def simple(
    opened: Opened, train: Sequence[Example], names: Sequence[str], vectors: str | None = None
) -> tuple[list[Beside], dict[str, str]]:
    """The baselines of a task; of several, those that all of them have."""
    if not opened.members:
        return beside(opened.task, train, opened.judged, names, vectors=vectors)
    judged = opened.judged
    absent: dict[str, str] = {}
    found: dict[str, list[tuple[list[int], Beside]]] = {}
    for member, learnt, mine in zip(opened.members, owned(opened, train), owned(opened, judged), strict=True):
        some, asked = [train[at] for at in learnt], [judged[at] for at in mine]
        rows, without = beside(member.task, some, asked, names, vectors=vectors)
        absent |= without
        for row in rows:
            found.setdefault(row.slot or row.name, []).append((mine, row))
    made: list[Beside] = []
    for slot, each in found.items():
        own = {row.name for _, row in each}
        name = own.pop() if len(own) == 1 else slot
        if len(each) < len(opened.members):
            absent[name] = "not all of these tasks have it"
            continue
        said = {at: one for mine, row in each for at, one in zip(mine, row.predictions, strict=True)}
        seconds = sum(row.seconds for _, row in each)
        ordered = [said[at] for at in range(len(judged))]
        made.append(Beside(name=name, about=each[0][1].about, predictions=ordered, seconds=seconds))
    return made, absent


def predictions_of(trial: Facts, split: str) -> list[Prediction]:
    """What a trial said of a split, as far as metrics ask for it."""
    said: list[dict[str, Any]] = trial["said"][split]
    found: list[dict[str, Any]] = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in one.items()} for one in said
    ]
    return [Prediction(**one) for one in found]


def compared(opened: Opened, chosen: Sequence[Facts], row: Beside) -> Facts:
    """A baseline's scores, and by how much the runs are better on the same examples."""
    scores = scored(opened, opened.judged, row.predictions)
    ours = [predictions_of(one, opened.headline) for one in chosen]
    return {
        "name": row.name,
        "about": row.about,
        "score": next(iter(scores.values())),
        "scores": scores,
        "seconds": round(row.seconds, 3),
        "against": asdict(bootstrap(opened, ours, row.predictions)),
    }


def bootstrap(opened: Opened, ours: Sequence[Sequence[Prediction]], other: Sequence[Prediction]) -> Comparison:
    """The paired bootstrap; with scores of single examples where the metric is a mean of them.

    Where a question with all its answers is judged as one, questions are drawn.
    """
    task, examples = opened.task, opened.judged
    if task.metrics[0] in ("accuracy", "choice_accuracy", "squad", "squad2", "exact_match", "rouge", "rouge_stemmed"):
        each = [[_alone(task, example, run[i]) for i, example in enumerate(examples)] for run in (*ours, other)]
        means = [sum(column) / len(ours) for column in zip(*each[:-1], strict=True)]
        return of_means(means, each[-1])

    def metric(gold: Sequence[Example], said: Sequence[Prediction]) -> float:
        return float(next(iter(scored(opened, gold, said).values())))

    begun = time.perf_counter()
    metric(examples, other)
    took = (time.perf_counter() - begun) * (len(ours) + 1)
    rounds = max(min(ROUNDS, int(PATIENCE / max(took, 1e-6))), 100)
    if task.metrics[0] not in GROUPED:
        return against(examples, ours, [other], metric, rounds=rounds)
    groups = [example.group or f"\0{at}" for at, example in enumerate(examples)]

    def whole(drawn: Sequence[Sequence[Example]], said: Sequence[Sequence[Prediction]]) -> float:
        told = [replace(one, group=str(at)) for at, group in enumerate(drawn) for one in group]  # drawn twice: twice
        return metric(told, [one for group in said for one in group])

    units = [by_group(run, groups) for run in (*ours, other)]
    return against(by_group(examples, groups), units[:-1], units[-1:], whole, rounds=rounds)


def _alone(task: Task, example: Example, said: Prediction) -> float:
    return float(next(iter(score(task, [example], [said]).values())))


def curve(opened: Opened, plan: Plan, tuning: Tuning, trials: Sequence[Facts], rate: float) -> list[Facts]:
    """The result by number of labels, with the baselines learnt from the same examples; nothing for one number."""
    counts = sorted({one["labels"] for one in trials})
    found: list[Facts] = []
    for count in counts if len(counts) > 1 else []:
        some = [one for one in trials if one["labels"] == count and one["lr"] == rate]
        rows, _ = simple(opened, opened.limited(count, tuning.task.split), plan.baselines)
        beneath = {row.name: _first(opened, row) for row in rows}
        found.append({"labels": count, **result(opened, some), "baselines": beneath})
    return found


def _first(opened: Opened, row: Beside) -> float:
    return float(next(iter(scored(opened, opened.judged, row.predictions).values())))


def summed(costs: Sequence[Mapping[str, Any]]) -> Facts:
    """The cost of all trials together; what is not a sum is the first one's."""
    found = dict(costs[0])
    for name in SUMMED:
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
