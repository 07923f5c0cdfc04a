"""Suite of a pre-trained model: fine-tuned on eight tasks by the defaults, or by other settings, several side by side.

    python -m bench.quality.suite MODEL --data tasks --out suite.jsonl [--seeds 3] [--streams 6] [--set train.epochs=6]

Tasks: SST-2 (8,000 labels), CoLA, MRPC, STS-B, QQP, MNLI (9,888 examples), RTE and CoNLL, whose mean is the score of
the suite, and SST-2 with 500 labels beside it. Each result is a JSON line with the settings, the official score (of the
test set, or of dev where there is none) and the dev score; lines that exist are not computed again. `--settings FILE`
takes a YAML list of settings, each of which is tried on every task. The table at the end has a row for each settings.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import common

TASKS: dict[str, tuple[str, ...]] = {
    "sst2": ("--task", "sst2", "--train-examples", "8000"),
    "cola": ("--task", "cola"),
    "mrpc": ("--task", "mrpc"),
    "stsb": ("--task", "stsb"),
    "qqp": ("--task", "qqp"),
    "mnli": ("--task", "mnli"),
    "rte": ("--task", "rte"),
    "conll2003": ("--task", "conll2003"),
    "sst2-500": ("--task", "sst2", "--train-examples", "500"),
}
"""Options of the tasks."""
BESIDE = "sst2-500"
"""The task that is no part of the mean."""


def finetune(
    model: Path, task: str, settings: Mapping[str, object], *, data: Path, seeds: int, seconds: float, options: str
) -> dict[str, Any]:
    """Return the line of one task."""
    words = [word for path, value in settings.items() for word in ("--set", f"{path}={json.dumps(value)}")]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "pretune", "finetune", str(model), *TASKS[task], "--data", str(data)]
        command += ["--seeds", str(seeds), "--baselines", "none", "--out", f"{out}/run", "--json", *words]
        command += options.split()
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-500:]}")
    report = json.loads(done.stdout)
    result = report["result"]
    return {
        "model": str(model),
        "task": task,
        "settings": dict(settings),
        "options": options,
        "score": round(result["score"], 4),
        "each": [round(score, 4) for score in result["each"]],
        "dev": round(result["dev"], 4),
        "lr": report["model"]["lr"],
        "best_step": report["model"]["best_step"],
        "steps": report["model"]["steps"],
        "seconds": round(time.monotonic() - started, 1),
    }


def print_table(lines: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> None:
    """Print a row for each model and settings: the scores, and their mean."""
    rows: dict[str, dict[str, float]] = {}
    for line in lines:
        name = f"{Path(line['model']).name} {json.dumps(line['settings'])} {line['options']}"
        rows.setdefault(name, {})[line["task"]] = line["score"]
    print(" ".join(f"{task[:8]:>8}" for task in tasks), "   mean")
    for name, scores in rows.items():
        parts = [scores[task] for task in tasks if task in scores and task != BESIDE]
        cells = " ".join(f"{scores[task]:8.3f}" if task in scores else f"{'':8}" for task in tasks)
        print(cells, f"{sum(parts) / max(len(parts), 1):7.4f}", name, flush=True)


def main() -> None:
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("model", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True, help="directory of the task data")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    parser.add_argument("--tasks", default=",".join(TASKS), help="names, comma-separated")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--streams", type=int, default=6, help="fine-tunings side by side")
    parser.add_argument("--seconds", type=float, default=540.0, help="limit of the whole")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--settings", type=Path, help="YAML list of settings, instead of --set")
    parser.add_argument("--options", default="", help="further options of `pretune finetune`")
    args: argparse.Namespace = parser.parse_args()
    import yaml

    all_settings: list[dict[str, object]] = [
        {path: yaml.safe_load(value) for path, value in (word.split("=", 1) for word in args.set)}
    ]
    if args.settings is not None:
        all_settings = yaml.safe_load(args.settings.read_text())
    end, tasks = time.monotonic() + args.seconds, args.tasks.split(",")
    lines = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    known = {(line["model"], line["task"], json.dumps(line["settings"]), line["options"]) for line in lines}
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    def work(job: tuple[Path, dict[str, object], str]) -> None:
        model, settings, task = job
        if time.monotonic() > end or (str(model), task, json.dumps(settings), args.options) in known:
            return
        try:
            line = finetune(
                model, task, settings,
                data=args.data, seeds=args.seeds, seconds=max(1.0, end - time.monotonic()), options=args.options,
            )  # fmt: skip
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{task} {settings}: {str(error)[-400:]}", flush=True)
            return
        lines.append(line)
        with args.out.open("a") as file:
            file.write(json.dumps(line) + "\n")

    with ThreadPoolExecutor(args.streams) as pool:
        list(
            pool.map(
                work, [(model, settings, task) for settings in all_settings for model in args.model for task in tasks]
            )
        )
    print_table(lines, tasks)


if __name__ == "__main__":
    main()
