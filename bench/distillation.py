"""Distillation, compared with the same student without a teacher.

    PYTHONPATH=src python bench/distillation.py pretrain --data DATA --work DIR [--jobs 3] [--out pretrain.json]
    PYTHONPATH=src python bench/distillation.py task --base MODEL --data DATA --tasks TASKS --work DIR [--out task.json]

`pretrain`: a teacher is pre-trained, then a student of half its depth with and without it, three seeds each. Rows:
`alone`; `distilled` (DistilBERT's weights, started from layers of the teacher); `distilled-random` (from random
weights); `alone-long`, given the FLOPs of student and teacher together. Scores are validation losses of the masked
language model.

`task`: MODEL is fine-tuned on SST-2. TinyBERT's 4 layers of width 312 imitate its layers on DATA (the general stage:
layers 2, 3, 5, 6 of 6), which gives the initial weights of all rows: `alone`; `distilled` (soft targets and labels);
`layers` (layers for half of the steps, then logits alone: TinyBERT); `alone-long`. Each row selects its learning rate
on dev; scores are on test, averaged over seeds, with a paired bootstrap against `alone`.

Runs that exist in DIR are not repeated. Several runs share the device (`--jobs`), so times are not comparable.
"""

import argparse
import concurrent.futures
import json
import math
import multiprocessing
import statistics
from pathlib import Path
from typing import Any

import common

MAX_LENGTH = 128
TASK_RATES = (5e-5, 1e-4, 2e-4, 4e-4)


def run_all(function: Any, jobs: dict[str, dict[str, Any]], workers: int) -> dict[str, Any]:
    """Call a function of this module once per job, several at a time, each in a new process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        futures = {name: pool.submit(function, **options) for name, options in jobs.items()}
        return {name: future.result() for name, future in futures.items()}


# Pre-training.


def pretrain(
    name: str, data: str, out: str, steps: int, device: str, overrides: dict[str, Any], teacher: str | None = None
) -> dict[str, Any]:
    """Pre-train one model, unless its run exists, and return its summary."""
    import pretune as pt

    folder = Path(out)
    is_started = (folder / "run.json").exists()
    options: dict[str, Any] = {} if is_started else {"data": data, "steps": steps, "overrides": overrides}
    if not is_started:
        options |= {"model": name, "objective": "masked", "teacher": teacher}
    run = pt.pretrain(**options, out=folder, resume=is_started, device=device)
    return run.summary


def build_pretraining_jobs(args: argparse.Namespace, teacher: str) -> dict[str, dict[str, Any]]:
    """Return the runs of students, by row and seed."""
    from pretune.runs.defaults import build_pretrain_config
    from pretune.runs.estimate import estimate_pretrain

    overrides = get_overrides(args, args.depth // 2)
    options: dict[str, Any] = {"data": args.data, "objective": "masked", "steps": args.steps, "overrides": overrides}
    costs = [
        estimate_pretrain(build_pretrain_config("bert-base", **options, teacher=path))["flops"]
        for path in (None, teacher)
    ]
    longer = math.ceil(args.steps * costs[1] / costs[0])
    rows: dict[str, dict[str, Any]] = {
        "alone": {"steps": args.steps},
        "distilled": {"steps": args.steps, "teacher": teacher},
        "distilled-random": {"steps": args.steps, "teacher": teacher},
        "alone-long": {"steps": longer},
    }
    jobs = {}
    for seed in range(args.seeds):
        for row in args.rows.split(",") if args.rows else rows:
            changes = {**overrides, "train.seed": seed}
            if row == "distilled-random":
                changes["objective.init"] = "random"
            out = str(args.work / f"{row}-{seed}")
            common_options = {"name": "bert-base", "data": args.data, "out": out, "device": args.device}
            jobs[f"{row}-{seed}"] = {**common_options, "overrides": changes, **rows[row]}
    return jobs


def get_overrides(args: argparse.Namespace, depth: int) -> dict[str, Any]:
    """Return the settings of teacher and students."""
    return {
        "model.width": args.width,
        "model.depth": depth,
        "model.heads": args.heads,
        "model.hidden": 4 * args.width,
        "model.positions": MAX_LENGTH,
        "data.max_length": MAX_LENGTH,
        "data.length_schedule": None,
        "data.samples": "documents",
        "train.lr": args.lr,
        "train.batch_tokens": args.batch_tokens,
        "train.samples_every": 0,
        "train.checkpoint_every": 100_000,
        "train.eval_every": 100_000,  # before the first step and after the last
    }


def compare_pretraining(args: argparse.Namespace) -> dict[str, Any]:
    """Train the teacher and all students; return losses, FLOPs and differences."""
    path = str(args.work / "teacher")
    options = {"name": "bert-base", "data": args.data, "out": path, "steps": args.teacher_steps, "device": args.device}
    jobs = {"teacher": {**options, "overrides": get_overrides(args, args.depth)}}
    teacher = run_all(pretrain, jobs, 1)["teacher"]
    print(f"teacher: {describe(teacher)}", flush=True)
    jobs = build_pretraining_jobs(args, path)
    summaries = run_all(pretrain, jobs, args.jobs)
    rows: dict[str, Any] = {}
    for name, summary in summaries.items():
        row = rows.setdefault(name.rpartition("-")[0], {"loss": [], "student_flops": 0.0, "teacher_flops": 0.0})
        row["loss"].append(summary["held_out"]["loss"])
        row["steps"] = summary["steps"]
        row["teacher_flops"] = summary.get("teacher_flops", 0.0)
        row["student_flops"] = summary["cost"]["flops"] - row["teacher_flops"]
    for row in rows.values():
        row["mean"] = statistics.mean(row["loss"])
        row["against_alone"] = compute_paired_t(row["loss"], rows["alone"]["loss"])
    return {"device": common.describe_device(args.device), "teacher": teacher["held_out"], "rows": rows}


def describe(summary: dict[str, Any]) -> str:
    """Return a line about a run."""
    loss, flops = summary["held_out"]["loss"], summary["cost"]["flops"]
    return f"validation loss {loss:.3f}, {flops / 1e12:.3g} TFLOP in {summary['seconds']:.0f} s"


def compute_paired_t(values: list[float], baseline: list[float]) -> dict[str, Any]:
    """Return the mean difference over seeds, and the two-sided p-value of a paired t-test."""
    differences = [value - other for value, other in zip(values, baseline, strict=True)]
    mean, count = statistics.mean(differences), len(differences)
    spread = statistics.stdev(differences) if count > 1 else 0.0
    if not spread:
        return {"difference": mean, "each": differences, "p": None}
    from scipy.stats import t

    p = 2 * float(t.sf(abs(mean) / (spread / math.sqrt(count)), count - 1))
    return {"difference": mean, "each": differences, "p": p}


# Tasks.


def finetune(
    model: str, tasks: str, out: str, device: str, overrides: dict[str, Any], teacher: str | None = None, **options: Any
) -> dict[str, Any]:
    """Fine-tune on SST-2, unless the run exists; return its scores."""
    import pretune as pt

    folder = Path(out)
    is_started = (folder / "run.json").exists()
    if not is_started:
        options |= {"model": model, "task": "sst2", "data": tasks, "overrides": overrides, "teacher": teacher}
        options["baselines"] = "none"
    run = pt.finetune(**({} if is_started else options), out=folder, resume=is_started, device=device)
    return {"scores": run.scores, "correct": read_correct(folder, run.scores)}


def read_correct(folder: Path, scores: dict[str, Any]) -> list[float]:
    """Return the share of seeds that are correct on each test example, with the selected rate."""
    rate, means = scores["model"]["lr"], []
    files = sorted((folder / "trials").glob(f"*-lr-{rate:g}-seed-*/predictions.jsonl")) or [
        folder / "predictions.jsonl"
    ]
    for file in files:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        means.append([float(row["label"] == row["gold"]) for row in rows if row["split"] == scores["result"]["split"]])
    return [statistics.mean(column) for column in zip(*means, strict=True)]


def pretrain_student(data: str, teacher: str, out: str, device: str, steps: int, batch_tokens: int) -> dict[str, Any]:
    """Make the initial weights: TinyBERT's general distillation on prepared text."""
    import pretune as pt

    folder = Path(out)
    overrides = {"data.samples": "documents", "data.max_length": MAX_LENGTH, "train.lr": 1e-3, "train.samples_every": 0}
    overrides |= {"train.batch_tokens": batch_tokens, "train.checkpoint_every": 100_000, "train.eval_every": 100_000}
    if (folder / "cost.json").exists():
        return json.loads((folder / "cost.json").read_text())["run"]
    options: dict[str, Any] = {"data": data, "teacher": teacher, "steps": steps, "overrides": overrides}
    return pt.pretrain("tinybert-4", objective="masked", out=folder, device=device, **options).summary


def compute_longer(student: str, args: argparse.Namespace) -> float:
    """Return the length of a run without teacher that has the FLOPs of one with cached logits, relative to it."""
    from pretune.models.cost import flops_per_token
    from pretune.models.hf.checkpoint import inspect_checkpoint

    length = 16  # about the mean of SST-2
    trained = flops_per_token(inspect_checkpoint(student)[0], length=length, targets=0.0)
    forward = flops_per_token(inspect_checkpoint(args.base)[0], length=length, targets=0.0, training=False)
    return 1 + forward / (args.epochs * trained)


def compare_tasks(args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune the teacher and all students; return scores, FLOPs and paired tests."""
    from pretune.metrics.significance import paired_bootstrap_of_means

    start, teacher = str(args.work / "general"), str(args.work / "teacher")
    general = {"data": args.data, "teacher": args.base, "out": start, "device": args.device}
    run_all(pretrain_student, {"general": {**general, "steps": args.steps, "batch_tokens": args.batch_tokens}}, 1)
    shared: dict[str, Any] = {"tasks": args.tasks, "device": args.device}
    settings: dict[str, Any] = {"task.train_examples": args.train_examples} if args.train_examples else {}
    options = {**shared, "model": args.base, "out": teacher, "lr": (3e-5, 5e-5, 1e-4), "epochs": args.epochs}
    best = run_all(finetune, {"teacher": {**options, "overrides": settings}}, 1)["teacher"]["scores"]
    print(f"teacher: {best['result']['score']:.4f} on {best['result']['split']}", flush=True)
    layers: dict[str, Any] = {
        f"tune.distill.{name}_weight": 1.0 for name in ("state", "embedding", "attention", "soft")
    }
    layers |= {"tune.distill.layer_share": 0.5, "tune.distill.hard_weight": 0.0, "tune.distill.temperature": 1.0}
    student: dict[str, Any] = {**shared, "model": start, "lr": TASK_RATES, "seeds": args.seeds, "epochs": args.epochs}
    jobs = {
        "alone": {**student, "overrides": settings},
        "distilled": {**student, "overrides": settings, "teacher": teacher},
        "layers": {**student, "overrides": {**settings, **layers}, "teacher": teacher},
        "alone-long": {**student, "overrides": settings, "epochs": args.epochs * compute_longer(start, args)},
    }
    for name in jobs:
        jobs[name]["out"] = str(args.work / name)
    results = run_all(finetune, jobs, args.jobs)
    rows: dict[str, Any] = {}
    for name, result in results.items():
        scores = result["scores"]
        trials = [trial for trial in scores["trials"] if trial["lr"] == scores["model"]["lr"]]
        summary = trials[0]["summary"]  # the first trial has the cost of cached logits, if any
        test = paired_bootstrap_of_means(result["correct"], results["alone"]["correct"])
        rows[name] = {
            "score": scores["result"]["score"],
            "each": scores["result"]["each"],
            "lr": scores["model"]["lr"],
            "rates": scores["rates"],
            "steps": trials[0]["steps"],
            "flops": summary["cost"]["flops"],
            "teacher_flops": max(trial["summary"].get("teacher_flops", 0.0) for trial in scores["trials"]),
            "against_alone": {"difference": test.difference, "low": test.low, "high": test.high, "p": test.p},
        }
    return {"device": common.describe_device(args.device), "teacher": best["result"], "rows": rows}


def main() -> None:
    """Run one of the comparisons and print it."""
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("part", choices=("pretrain", "task"))
    parser.add_argument("--data", required=True, help="prepared data")
    parser.add_argument("--work", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=700, help="of a student; in `task`, of the general stage")
    parser.add_argument("--batch-tokens", type=int, default=65_536)
    parser.add_argument("--teacher-steps", type=int, default=2000)
    parser.add_argument("--depth", type=int, default=12, help="of the teacher")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--rows", default="", help="rows of `pretrain`, comma-separated; default: all")
    parser.add_argument("--base", help="model that is fine-tuned as teacher")
    parser.add_argument("--tasks", help="directory of tasks")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--train-examples", type=int)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    common.print_result(compare_pretraining(args) if args.part == "pretrain" else compare_tasks(args), args.out)


if __name__ == "__main__":
    main()
