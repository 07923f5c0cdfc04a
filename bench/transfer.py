"""Transfer learning: scores and cost of every fine-tuning method on many tasks, compared with full fine-tuning.

    PYTHONPATH=src python bench/transfer.py --base MODEL --data tasks --out transfer.json --minutes 25
    PYTHONPATH=src python bench/transfer.py --out transfer.json --table            # as Markdown

The result is a JSON list of cells, one per (task, method, seed): official score, baselines (once per task), number of
trained parameters, peak memory, and examples per second (meaningful only if the device was not shared: `--alone`).
Several processes may share a device, each with its own file; `--table` reads `--out A --more B,C`. Existing cells are
not computed again, and no cell starts after `--minutes`, so the work can be split. Seeds are the outermost loop.
Methods with a first stage, or with one run for several tasks, are in transfer_stages.py: give one process all tasks of
a seed.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import common
from transfer_stages import DESCRIPTIONS, Stages

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

    log.set_quiet(True)
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
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
