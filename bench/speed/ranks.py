"""Speedup of two CPU ranks over one, a core each, with the same tokens per step (target P13).

    python -m bench.speed.ranks [--verb finetune] [--model bert-mini] [--steps 16] [--repeats 3] [--out FILE]

The text is synthetic. A run is `pretune pretrain` (or `finetune`, 64 examples per step) with one thread per process,
directly or under torchrun. The time of a step is the median after the first four steps, from `metrics.jsonl`; runs
alternate and the median of the repeats counts. The wall-clock ratio is meaningful only if both cores are idle, so the
load is printed. The CPU time per step (a long run minus a short one) gives an upper bound of the speedup on any
machine. The losses of both runs must agree. Prints JSON.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import common

GOAL = 1.8
WARMUP_STEPS = 4


def build_pretrain_command(model: str) -> list[str]:
    """Return the arguments of a pre-training run with 4,096 tokens per step."""
    command = ["pretrain", model, "--paper", "--data", "data", "--objective", "masked", "--set", "train.eval_tokens=0"]
    command += [
        "--set",
        "data.max_length=128",
        "--set",
        "data.length_schedule=none",
        "--set",
        "train.batch_tokens=4096",
    ]
    return [*command, "--set", "model.dropout=0"]


def build_finetune_command() -> list[str]:
    """Return the arguments of a fine-tuning run with 64 examples per step, about 60 tokens each."""
    command = ["finetune", "base", "--train", "table.csv", "--baselines", "none", "--set", "train.batch=64"]
    return [*command, "--set", "train.eval_every=1000000", "--set", "train.eval_examples=8", "--set", "tune.dropout=0"]


def make_table() -> str:
    """Create a table of examples whose label is one of their words."""
    rows = [" ".join(f"w{(row * 31 + i) ** 2 % 4_999}" for i in range(20)) for row in range(1_000)]
    return "text,label\n" + "".join(f"{text} {'yes' if i % 2 else 'no'},{i % 2}\n" for i, text in enumerate(rows))


def run(arguments: list[str], folder: Path, ranks: int, steps: int, name: str) -> tuple[float, float, float]:
    """Run once; return the seconds per step, the CPU seconds of the run, and the last loss."""
    out = folder / name
    launcher = [] if ranks == 1 else ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    command = [
        sys.executable,
        "-m",
        *launcher,
        "pretune",
        "--quiet",
        *arguments,
        "--out",
        str(out),
        "--steps",
        str(steps),
    ]
    command += ["--device", "cpu", "--set", "train.log_every=1"]
    cpu_start = os.times()
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    cpu_end = os.times()
    if process.returncode:
        raise SystemExit(process.stderr[-3000:])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "seconds" in row]
    times = [row["seconds"] for row in rows]
    seconds = [end - start for start, end in itertools.pairwise(times[WARMUP_STEPS - 1 :])]
    return statistics.median(seconds or [0.0]), sum(cpu_end[2:4]) - sum(cpu_start[2:4]), rows[-1]["loss"]


def main() -> None:
    """Prepare the data, alternate the runs and print the ratio."""
    parser = common.build_parser(__doc__)
    parser.add_argument("--verb", choices=("pretrain", "finetune"), default="pretrain")
    parser.add_argument("--model", default="bert-mini")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=str(common.ROOT / "src"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text(common.make_documents(200_000, 4_999, 200))
        pretune = [sys.executable, "-m", "pretune", "--quiet"]
        tokenizer = ["tokenizer", "text.txt", "--kind", "wordpiece", "--vocab", "8000", "--out", "tok"]
        for command in (tokenizer, ["prepare", "text.txt", "--tokenizer", "tok", "--out", "data"]):
            subprocess.run([*pretune, *command], cwd=folder, check=True, capture_output=True)
        arguments = build_pretrain_command(options.model)
        if options.verb == "finetune":
            (folder / "table.csv").write_text(make_table())
            run(arguments, folder, 1, 1, "base")
            arguments = build_finetune_command()
        step_seconds: dict[int, list[float]] = {1: [], 2: []}
        cpu_seconds: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(options.repeats):
            losses = {}
            for ranks in (1, 2):
                _, short, _ = run(arguments, folder, ranks, 2, f"short-{ranks}-{turn}")
                seconds, total, losses[ranks] = run(arguments, folder, ranks, options.steps, f"run-{ranks}-{turn}")
                step_seconds[ranks].append(seconds)
                cpu_seconds[ranks].append((total - short) / (options.steps - 2))
            if abs(losses[1] - losses[2]) > 1e-3 * losses[1]:
                raise SystemExit(f"losses differ: {losses[1]} with one rank, {losses[2]} with two")
    median_seconds = {ranks: statistics.median(values) for ranks, values in step_seconds.items()}
    min_cpu_seconds = {ranks: min(values) for ranks, values in cpu_seconds.items()}
    result = {
        "verb": options.verb,
        "model": options.model,
        "ratio": {
            "wall_clock": round(median_seconds[1] / median_seconds[2], 2),
            "upper bound by CPU time": round(2 * min_cpu_seconds[1] / min_cpu_seconds[2], 2),
        },
        "goal": GOAL,
        "seconds per step": {
            f"{ranks} rank{'s' * (ranks > 1)}": round(value, 3) for ranks, value in median_seconds.items()
        },
        "CPU seconds per step": {f"{ranks}": round(value, 3) for ranks, value in min_cpu_seconds.items()},
        "load": round(os.getloadavg()[0], 1),
    }
    common.print_result(result, options.out)


if __name__ == "__main__":
    main()
