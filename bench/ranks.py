"""Speedup of two CPU ranks over one, a core each, with the same tokens per step (target P13).

    PYTHONPATH=src python bench/ranks.py [--verb finetune] [--model bert-mini] [--steps 16] [--repeats 3] [--out FILE]

The text is synthetic. A run is `pretune pretrain` (or `finetune`, 64 examples per step) with one thread per process,
directly or under torchrun. The time of a step is the median after the first four steps, from `metrics.jsonl`; runs
alternate and the median of the repeats counts. The wall-clock ratio is meaningful only if both cores are idle, so the
load is printed. The CPU time per step (a long run minus a short one) gives an upper bound of the speedup on any
machine. The losses of both runs must agree. Prints JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

GOAL = 1.8
WARMUP_STEPS = 4


def make_text() -> str:
    """Create documents of 200 words with repeated words."""
    words = [f"w{number * number % 4_999}" for number in range(200_000)]
    return "\n\n".join(" ".join(words[start : start + 200]) for start in range(0, len(words), 200))


def build_pretrain_command(model: str) -> list[str]:
    """Return the arguments of a pre-training run with 4,096 tokens per step."""
    command = ["pretrain", model, "--data", "data", "--objective", "masked", "--set", "train.eval_tokens=0"]
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


def run(given: list[str], folder: Path, ranks: int, steps: int, name: str) -> tuple[float, float, float]:
    """Run once; return the seconds per step, the CPU seconds of the run, and the last loss."""
    out = folder / name
    start = [] if ranks == 1 else ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    command = [sys.executable, "-m", *start, "pretune", "--quiet", *given, "--out", str(out), "--steps", str(steps)]
    command += ["--device", "cpu", "--set", "train.log_every=1"]
    before = os.times()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    after = os.times()
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "seconds" in row]
    times = [row["seconds"] for row in rows]
    each = [later - sooner for sooner, later in zip(times[WARMUP_STEPS - 1 :], times[WARMUP_STEPS:], strict=False)]
    return statistics.median(each or [0.0]), sum(after[2:4]) - sum(before[2:4]), rows[-1]["loss"]


def main() -> None:
    """Prepare the data, alternate the runs and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verb", choices=("pretrain", "finetune"), default="pretrain")
    parser.add_argument("--model", default="bert-mini")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=str(Path(__file__).parents[1] / "src"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text(make_text())
        pretune = [sys.executable, "-m", "pretune", "--quiet"]
        tokenizer = ["tokenizer", "text.txt", "--kind", "wordpiece", "--vocab", "8000", "--out", "tok"]
        for command in (tokenizer, ["prepare", "text.txt", "--tokenizer", "tok", "--out", "data"]):
            subprocess.run([*pretune, *command], cwd=folder, check=True, capture_output=True)
        given = build_pretrain_command(options.model)
        if options.verb == "finetune":
            (folder / "table.csv").write_text(make_table())
            run(given, folder, 1, 1, "base")
            given = build_finetune_command()
        clock: dict[int, list[float]] = {1: [], 2: []}
        work: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(options.repeats):
            losses = {}
            for ranks in (1, 2):
                _, short, _ = run(given, folder, ranks, 2, f"short-{ranks}-{turn}")
                each, whole, losses[ranks] = run(given, folder, ranks, options.steps, f"run-{ranks}-{turn}")
                clock[ranks].append(each)
                work[ranks].append((whole - short) / (options.steps - 2))
            if abs(losses[1] - losses[2]) > 1e-3 * losses[1]:
                raise SystemExit(f"losses differ: {losses[1]} with one rank, {losses[2]} with two")
    seconds = {ranks: statistics.median(values) for ranks, values in clock.items()}
    needed = {ranks: min(values) for ranks, values in work.items()}
    result = {
        "verb": options.verb,
        "model": options.model,
        "ratio": {
            "clock": round(seconds[1] / seconds[2], 2),
            "upper bound by CPU time": round(2 * needed[1] / needed[2], 2),
        },
        "goal": GOAL,
        "seconds per step": {f"{ranks} rank{'s' * (ranks > 1)}": round(value, 3) for ranks, value in seconds.items()},
        "CPU seconds per step": {f"{ranks}": round(value, 3) for ranks, value in needed.items()},
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
