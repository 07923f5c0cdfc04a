"""Transfer learning: scores and cost of every fine-tuning method on many tasks, compared with full fine-tuning.

    python -m bench.quality.transfer --base MODEL --data tasks --out transfer.json --minutes 25
    python -m bench.quality.transfer --out transfer.json --table            # as Markdown

The result is a JSON list of cells, one per (task, method, seed): official score, baselines (once per task), number of
trained parameters, peak memory, and examples per second (meaningful only if the device was not shared: `--alone`).
Several processes may share a device, each with its own file; `--table` reads `--out A --more B,C`. Existing cells are
not computed again, and no cell starts after `--minutes`, so the work can be split. Seeds are the outermost loop.
A first stage is computed once per process for each task (or source task) and seed, in a temporary folder: give one
process all tasks of a seed.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench import common
from pretune.core.config import parse_assignments

TASKS: dict[str, dict[str, Any]] = {
    "cola": {},
    "sst2": {"task.train_examples": 10_000},
    "mrpc": {},
    "stsb": {},
    "rte": {},
    "conll2003": {"task.train_examples": 5_000},
    "ud_ewt": {"task.train_examples": 5_000},
    "squad1": {"task.train_examples": 4_000, "task.max_eval_examples": 1_500},
}
"""The tasks, with limits that keep a cell short."""
METHODS = (
    "full", "lora", "frozen", "adapter", "bitfit", "ia3", "prefix", "prompt", "qlora", "last-only", "freeze-first",
    "gradual", "ulmfit", "scalar-mix", "from-scratch", "decay", "extra-layers", "domain", "intermediate", "multi",
)  # fmt: skip


Facts = dict[str, Any]
DESCRIPTIONS = {
    "decay": "`full` with layer-wise learning rate decay of 0.9 (`tune.layer_decay=0.9`)",
    "extra-layers": "two new blocks on top of the frozen model, trained with the head",
    "domain": "300 steps of 8,192 tokens of masked pre-training, with a new vocabulary head, on the training texts of "
    "the task (Gururangan et al., 2020), then `full`",
    "intermediate": "`full` on another task first, then `full` with a new head (Phang et al., 2018): MNLI (9,888 "
    "examples), and for tagging the other tagging task",
    "multi": "`full`, one model with a head each for all sentence tasks, and one for CoNLL-2003, UD and SQuAD; tasks "
    "are mixed at a temperature of 2",
}
"""Descriptions of the methods."""
DOMAIN = {"train.batch_tokens": 8192, "data.max_length": 128, "data.length_schedule": None, "train.compile": False}
DOMAIN_STEPS, STAGE_DEV_EXAMPLES = 300, 1500
"""Steps of pre-training on the texts of a task; dev examples for model selection of a first stage."""
SOURCES = {"conll2003": "ud_ewt", "ud_ewt": "conll2003"}
"""Intermediate task of some tasks; MNLI for all others."""
GROUPS = (("cola", "sst2", "mrpc", "stsb", "rte"), ("conll2003", "ud_ewt", "squad1"))
"""Tasks that are trained together."""


@dataclass(frozen=True, slots=True)
class Start:
    """Starting point of the fine-tuning of a cell: a base, a method of `pretune finetune`, and settings."""

    base: Path
    method: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    first: Facts | None = None  # statistics of the first stage


@dataclass(slots=True)
class Stages:
    """First stages of one base model; `limits` are the settings that keep a task short."""

    base: Path
    data: Path
    limits: Mapping[str, Mapping[str, Any]]
    folder: Path
    batch: int
    epochs: float | None = None
    steps: int | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    cache: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def start(self, task: str, method: str, seed: int) -> Start:
        """Return the starting point of a cell; methods without a first stage start from the base."""
        if method == "decay":
            return Start(self.base, "full", {"tune.layer_decay": 0.9})
        if method not in ("domain", "intermediate"):
            return Start(self.base, method)
        source = task if method == "domain" else SOURCES.get(task, "mnli")
        key = (method, source, str(seed))
        if key not in self.cache:
            self.cache[key] = getattr(self, f"train_{method}")(source, seed, self.folder / "-".join(key))
            gc.collect()  # frees device memory of the stage before the cell is measured
        folder, facts = self.cache[key]
        return Start(folder, "full", {}, facts)

    def train_domain(self, task: str, seed: int, folder: Path) -> tuple[Path, Facts]:
        """Continue pre-training on the texts of a task's training examples, without labels."""
        import pretune as pt
        from pretune.runs.finetune.config import TaskConfig
        from pretune.runs.finetune.task_data import open_task

        start = time.perf_counter()
        examples = open_task(TaskConfig(name=task, data=str(self.data))).select_train(
            self.limit(task, "task.train_examples"), 0
        )
        texts = [text for example in examples for text in (example.text, example.pair, " ".join(example.words)) if text]
        folder.mkdir(parents=True)
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        data = pt.prepare([folder / "texts.jsonl"], tokenizer=self.base, out=folder / "data", holdout="2%", workers=0)
        steps = self.steps or DOMAIN_STEPS
        overrides = {**DOMAIN, "train.seed": seed, "train.workers": 0, "train.eval_every": steps}
        arguments: Facts = {"data": data, "objective": "masked", "steps": steps, "out": folder / "run"}
        run = pt.pretrain(init_from=self.base, **arguments, overrides=overrides)
        lines = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
        losses = [line["held_out"]["loss"] for line in lines if "held_out" in line]
        facts = {"tokens": data.tokens, "steps": steps, "held_out": [losses[0], losses[-1]]}
        return run.path, {**facts, "seconds": round(time.perf_counter() - start, 2)}

    def train_intermediate(self, task: str, seed: int, folder: Path) -> tuple[Path, Facts]:
        """Fine-tune on an intermediate task."""
        start = time.perf_counter()
        limits = {**self.limits.get(task, {}), "task.max_eval_examples": STAGE_DEV_EXAMPLES, "train.max_checkpoints": 0}
        run = self.finetune_full(task, seed, folder, limits)
        facts = {"task": task, "score": run.score, "steps": run.scores["trials"][0]["steps"]}
        return run.path, {**facts, "seconds": round(time.perf_counter() - start, 2)}

    def train_multi_task(self, task: str, seed: int) -> Facts:
        """Evaluate a task with the multi-task run of its group, trained on first use."""
        from pretune.runs.finetune.inference import evaluate_run
        from pretune.tasks import TASKS

        group = next(group for group in GROUPS if task in group)
        key = ("multi", *group, str(seed))
        if key not in self.cache:
            start = time.perf_counter()
            max_examples = max(self.limits.get(name, {}).get("task.train_examples", 0) for name in group)
            limits = {
                "task.max_examples_per_task": max_examples,
                "task.max_eval_examples": STAGE_DEV_EXAMPLES,
                "tune.temperature": 2.0,
            }
            run = self.finetune_full(",".join(group), seed, self.folder / "-".join(key), limits)
            self.cache[key] = run, time.perf_counter() - start
        run, seconds = self.cache[key]
        trial = run.scores["trials"][0]
        evaluation = evaluate_run(
            run.path, task=task, data=self.data, max_examples=self.limit(task, "task.max_eval_examples")
        )
        return {
            "trial": trial,
            "metric": TASKS.get(task).metrics[0],
            "split": evaluation.split,
            "score": next(iter(evaluation.scores.values())),
            "scores": evaluation.scores,
            "dev": trial["scores"]["dev"][task],
            "together": list(group),
            "seconds": round(seconds, 2),  # for all tasks of the group
        }

    def limit(self, task: str, name: str) -> int | None:
        """Return a limit of a task; values from the command line are text."""
        value = {**self.limits.get(task, {}), **self.set}.get(name)
        return None if value is None else int(value)

    def finetune_full(self, task: str, seed: int, folder: Path, limits: Mapping[str, Any]) -> Any:
        """Run full fine-tuning."""
        from pretune.runs.finetune.entry import finetune

        settings = {"train.seed": seed, "train.batch": self.batch}
        arguments: Facts = {"epochs": self.epochs, "steps": self.steps, "overrides": {**limits, **settings, **self.set}}
        return finetune(self.base, task=task, data=self.data, out=folder, baselines="none", **arguments)


def run_cell(stages: Stages, task: str, method: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune once and return the cell."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    train = stages.train_multi_task if method == "multi" else partial(run_single_task, stages, args, method)
    seconds, result = common.time_call(lambda: train(task, seed), clock=common.wall_clock)
    trial = result.pop("trial")
    return {
        "task": task,
        "method": method,
        "seed": seed,
        "lr": trial["lr"],
        "steps": trial["steps"],
        "best_step": trial["best_step"],
        "trained": trial["trained"],
        "parameters": trial["parameters"],
        "memory": trial["memory"],
        "examples_per_second": trial["steps"] * args.batch / max(trial["summary"]["seconds"], 1e-9),
        "alone": args.alone,
        "seconds": round(seconds, 2),
        "baselines": {},
        **result,
    }


def run_single_task(stages: Stages, args: argparse.Namespace, method: str, task: str, seed: int) -> dict[str, Any]:
    """Fine-tune on one task, after the first stage of the method if it has one."""
    from pretune.runs.finetune.entry import finetune

    start = stages.start(task, method, seed)
    overrides = {**TASKS.get(task, {}), "train.seed": seed, "train.batch": args.batch, **start.changes, **args.set}
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        scores = finetune(
            start.base,
            task=task,
            data=stages.data,
            method=start.method,
            epochs=args.epochs,
            steps=args.steps,
            out=Path(folder) / "run",
            baselines="default" if (method, seed) == (METHODS[0], 0) else "none",
            overrides=overrides,
        ).scores
    return {
        "trial": scores["trials"][0],
        "metric": scores["metric"],
        "split": scores["result"]["split"],
        "score": scores["result"]["score"],
        "scores": scores["result"]["scores"],
        "dev": next(iter(scores["model"]["scores"]["dev"].values())),
        "baselines": {row["name"]: row["score"] for row in scores["baselines"]},
        **({} if start.first is None else {"first": start.first}),
    }


def format_table(cells: list[dict[str, Any]]) -> str:
    """Return a Markdown table of methods by tasks: mean and standard deviation over seeds, peak memory, median rate."""
    tasks = list(dict.fromkeys(cell["task"] for cell in cells))
    methods = list(dict.fromkeys(cell["method"] for cell in cells))
    lines = ["| method | trained | memory, GB | examples/s | " + " | ".join(tasks) + " |"]
    lines.append("|---|---|---|---|" + "---|" * len(tasks))
    for method in methods:
        method_cells = [cell for cell in cells if cell["method"] == method]
        share = statistics.mean(cell["trained"] / cell["parameters"] for cell in method_cells)
        row = []
        for task in tasks:
            scores = [100 * cell["score"] for cell in method_cells if cell["task"] == task]
            spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
            row.append(f"{statistics.mean(scores):.1f}{spread}" if scores else "")
        memory = f"{max(cell['memory'] or 0 for cell in method_cells) / 1e9:.2f}"
        alone_cells = [cell for cell in method_cells if cell.get("alone")] or method_cells
        rate = f"{statistics.median(cell['examples_per_second'] for cell in alone_cells):,.0f}"
        lines.append(f"| {method} | {share:.1%} | {memory} | {rate} | " + " | ".join(row) + " |")
    baselines = {cell["task"]: cell["baselines"] for cell in cells if cell["baselines"]}
    for name in dict.fromkeys(name for scores_by_name in baselines.values() for name in scores_by_name):
        row = [f"{100 * baselines[task][name]:.1f}" if name in baselines.get(task, {}) else "" for task in tasks]
        lines.append(f"| {name} (baseline) | | | | " + " | ".join(row) + " |")
    for method in [method for method in methods if method in DESCRIPTIONS]:
        seconds = [cell["first"]["seconds"] for cell in cells if cell["method"] == method and "first" in cell]
        note = f"; {statistics.median(seconds):.0f} s for the first stage" if seconds else ""
        lines += ["", f"`{method}`: {DESCRIPTIONS[method]}{note}."]
    return "\n".join(lines)


def main() -> None:
    """Compute the missing cells, or print the table."""
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the cells; extended if it exists")
    parser.add_argument("--minutes", type=float, default=25.0, help="time limit")
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=list(TASKS))
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=float, default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--alone", action="store_true", help="the device is not shared: times and memory are valid")
    parser.add_argument("--set", action="append", default=[], help="PATH=VALUE, for every cell")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for temporary runs")
    parser.add_argument("--more", type=lambda text: [Path(part) for part in text.split(",")], default=[])
    parser.add_argument("--table", action="store_true", help="print the cells as a Markdown table and exit")
    args = parser.parse_args()
    args.set = parse_assignments(args.set) | ({"train.compile": True} if args.compile else {})
    cells: list[dict[str, Any]] = json.loads(args.out.read_text()) if args.out.is_file() else []
    if args.table:
        cells += [cell for path in args.more for cell in json.loads(path.read_text())]
        print(format_table(cells))
        return
    if args.base is None or args.data is None:
        parser.error("--base and --data are needed")
    from pretune.core import log

    with log.silence(), tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        stages = Stages(args.base, args.data, TASKS, Path(folder), args.batch, args.epochs, args.steps, args.set)
        run_cells(stages, cells, args)
    print(json.dumps({"cells": len(cells), "wanted": len(args.seeds) * len(args.tasks) * len(args.methods)}))


def run_cells(stages: Stages, cells: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Compute the missing cells within the time limit, and write the file after each."""
    end = time.monotonic() + 60 * args.minutes
    existing = {(row["task"], row["method"], row["seed"]) for row in cells}
    for seed in args.seeds:
        for task in args.tasks:
            for method in args.methods:
                if (task, method, seed) in existing or time.monotonic() > end:
                    continue
                try:
                    cell = run_cell(stages, task, method, seed, args)
                except Exception as error:
                    print(f"{task} {method} {seed}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    continue
                cells.append(cell)
                args.out.write_text(json.dumps(cells, indent=1))
                outcome = f"{cell['score']:.4f} in {cell['seconds']} s"
                print(f"{task} {method} {seed}: {outcome}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
