"""Bit-exactness of pre-training: uninterrupted, killed and resumed, under torchrun, and with FSDP.

    python -m bench.quality.exactness --data DATA [--model bert-tiny] [--steps 60] [--kill-after 35]
        [--device cpu] [--out result.json]

DATA is the output of `pretune prepare`. All four runs are `pretune pretrain` with the same settings (deterministic
kernels, a checkpoint every ten steps). The second run gets SIGKILL as soon as it has logged step `--kill-after`, which
lies between two checkpoints, and is resumed. torchrun starts one process, with NCCL on CUDA and gloo on a CPU. Prints
JSON: the SHA-256 of each `model.safetensors` and whether all weights and all losses are equal. The exit code is 1 if
they are not. On a GPU the runs are concurrent, on a CPU sequential.
"""

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

from bench import common

TIMEOUT_SECONDS = 300.0
"""Limit for a run to reach the step at which it is killed."""
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=1", "-m")


def start(*arguments: str, ranks: bool = False) -> "subprocess.Popen[str]":
    """Start `pretune pretrain` in a process group of its own."""
    command = [sys.executable, "-m", *(TORCHRUN if ranks else ()), "pretune", "--quiet", "pretrain", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: "subprocess.Popen[str]") -> None:
    """Wait for a process; exit with its error output if it failed."""
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(process.args)} failed with exit code {process.returncode}:\n{errors[-3000:]}")  # type: ignore[arg-type]


def read_metrics(run: Path) -> list[dict[str, float]]:
    """Read the metrics of a run so far; the last line may be incomplete."""
    try:
        text = (run / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def run_uninterrupted(run: Path, arguments: list[str], ranks: bool = False) -> None:
    """Train without interruption."""
    finish(start(*arguments, "--out", str(run), ranks=ranks))


def run_killed_and_resumed(run: Path, arguments: list[str], kill_step: int) -> None:
    """Kill a run after a step, and resume it from the last checkpoint."""
    process, start_time = start(*arguments, "--out", str(run)), time.monotonic()
    while not any(row.get("step", 0) >= kill_step for row in read_metrics(run)):
        if process.poll() is not None:
            finish(process)
            raise SystemExit(f"the run ended before it could be killed after step {kill_step}; increase --steps")
        if time.monotonic() - start_time > TIMEOUT_SECONDS:
            process.kill()
            raise SystemExit(f"no step {kill_step} within {TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.02)
    process.kill()
    process.communicate()
    with suppress(ProcessLookupError):  # remaining data workers
        os.killpg(process.pid, signal.SIGKILL)
    if (run / "model.safetensors").exists():
        raise SystemExit("the run finished before it was killed; increase --steps")
    finish(start("--resume", "--out", str(run)))


def main() -> int:
    """Run all variants, compare them and print the result."""
    parser = common.build_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="output of `pretune prepare`")
    parser.add_argument("--model", default="bert-tiny")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill-after", type=int, default=35, help="step after which the second run is killed")
    parser.add_argument("--batch-tokens", type=int, default=8192, help="tokens per step")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if available")
    options = parser.parse_args()
    import torch

    device = options.device or common.find_device()
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torchrun processes select their device themselves
    settings = {"batch_tokens": options.batch_tokens, "deterministic": "true", "checkpoint_every": 10, "log_every": 1}
    arguments = [options.model, "--paper", "--data", str(options.data), "--steps", str(options.steps)]
    arguments += [f"--set=train.{name}={value}" for name, value in settings.items()]
    variants: dict[str, Callable[[Path], None]] = {
        "uninterrupted": partial(run_uninterrupted, arguments=arguments),
        f"killed after step {options.kill_after} and resumed": partial(
            run_killed_and_resumed, arguments=arguments, kill_step=options.kill_after
        ),
        "torchrun, one process": partial(run_uninterrupted, arguments=arguments, ranks=True),
        "torchrun, one process, fsdp": partial(
            run_uninterrupted, arguments=[*arguments, "--set=train.parallel=fsdp"], ranks=True
        ),
    }
    start_time = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        runs = {variant: Path(name) / str(number) for number, variant in enumerate(variants)}
        with ThreadPoolExecutor(len(variants) if device == "cuda" else 1) as pool:
            list(pool.map(lambda variant: variants[variant](runs[variant]), variants))
        hashes = {
            variant: hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
            for variant, run in runs.items()
        }
        losses = [[row["loss"] for row in read_metrics(run) if "loss" in row] for run in runs.values()]
    result = {
        "device": common.describe_device(device),
        "torch": torch.__version__,
        "command": f"pretune pretrain {' '.join(arguments)}",
        "seconds": round(time.monotonic() - start_time, 1),
        "sha256": hashes,
        "losses": [losses[0][0], losses[0][-1]],
        "losses_equal": all(curve == losses[0] for curve in losses),
        "equal": len({*hashes.values()}) == 1,
    }
    common.print_result(result, options.out)
    return 0 if result["equal"] and result["losses_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
