"""The same bits by four ways: straight through, killed and resumed, under torchrun alone, and cut into shards (fsdp).

    PYTHONPATH=src python bench/exactness.py --data DATA [--model bert-tiny] [--steps 60] [--kill-after 35]
        [--device cpu] [--out result.json]

DATA is what `pretune prepare` wrote. Every way is a `pretune pretrain` with the same settings (deterministic kernels, a
checkpoint every ten steps); the second is killed with SIGKILL as soon as it has told of the step `--kill-after`, which
lies between two checkpoints, and is resumed. torchrun starts one process, which talks over NCCL on CUDA and over gloo
on a CPU. Told are the SHA-256 of each `model.safetensors`, whether all are equal, and whether all losses are; where
they are not, the exit code is 1. On a GPU the ways run side by side, on a CPU one after the other.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

TIMEOUT_SECONDS = 300.0
"""Seconds for a run to reach the step at which it is killed."""
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=1", "-m")


def start(*words: str, ranks: bool = False) -> "subprocess.Popen[str]":
    """A `pretune` of its own, in a group of processes of its own."""
    command = [sys.executable, "-m", *(TORCHRUN if ranks else ()), "pretune", "--quiet", "pretrain", *words]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: "subprocess.Popen[str]") -> None:
    """Wait for its end, which has to be a good one."""
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(process.args)} ended with {process.returncode}:\n{said[-3000:]}")  # type: ignore[arg-type]


def read_metrics(run: Path) -> list[dict[str, float]]:
    """Read the metrics of a run so far; the last line may be incomplete."""
    try:
        text = (run / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def run_uninterrupted(run: Path, words: list[str], ranks: bool = False) -> None:
    """From the first step to the last."""
    finish(start(*words, "--out", str(run), ranks=ranks))


def run_killed_and_resumed(run: Path, words: list[str], after: int) -> None:
    """Killed after a step, and resumed from the checkpoint before it."""
    process, begun = start(*words, "--out", str(run)), time.monotonic()
    while not any(row.get("step", 0) >= after for row in read_metrics(run)):
        if process.poll() is not None:
            finish(process)
            raise SystemExit(f"the run ended before it could be killed after step {after}; give it more --steps")
        if time.monotonic() - begun > TIMEOUT_SECONDS:
            process.kill()
            raise SystemExit(f"no step {after} within {TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.02)
    process.kill()
    process.communicate()
    with suppress(ProcessLookupError):  # workers that were left behind
        os.killpg(process.pid, signal.SIGKILL)
    if (run / "model.safetensors").exists():
        raise SystemExit("the run was over before it was killed; give it more --steps")
    finish(start("--resume", "--out", str(run)))


def main() -> int:
    """Run all ways, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="bert-tiny")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill-after", type=int, default=35)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="found by default")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a process of torchrun finds its device itself
    sets = {"batch_tokens": options.batch_tokens, "deterministic": "true", "checkpoint_every": 10, "log_every": 1}
    words = [options.model, "--data", str(options.data), "--steps", str(options.steps)]
    words += [f"--set=train.{name}={value}" for name, value in sets.items()]
    ways: dict[str, Callable[[Path], None]] = {
        "straight": partial(run_uninterrupted, words=words),
        f"killed after step {options.kill_after} and resumed": partial(
            run_killed_and_resumed, words=words, after=options.kill_after
        ),
        "torchrun, one process": partial(run_uninterrupted, words=words, ranks=True),
        "torchrun, one process, fsdp": partial(
            run_uninterrupted, words=[*words, "--set=train.parallel=fsdp"], ranks=True
        ),
    }
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        runs = {way: Path(name) / str(number) for number, way in enumerate(ways)}
        with ThreadPoolExecutor(len(ways) if device == "cuda" else 1) as pool:
            list(pool.map(lambda way: ways[way](runs[way]), ways))
        hashes = {
            way: hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest() for way, run in runs.items()
        }
        losses = [[row["loss"] for row in read_metrics(run) if "loss" in row] for run in runs.values()]
    found = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "command": f"pretune pretrain {' '.join(words)}",
        "seconds": round(time.monotonic() - begun, 1),
        "sha256": hashes,
        "losses": [losses[0][0], losses[0][-1]],
        "losses_equal": all(one == losses[0] for one in losses),
        "equal": len({*hashes.values()}) == 1,
    }
    text = json.dumps(found, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0 if found["equal"] and found["losses_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
