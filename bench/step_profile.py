"""Profile of a training step through the whole engine: milliseconds per step, then kernels and host calls.

    python bench/step_profile.py bert-base --data DATA --objective masked --set data.max_length=128

Runs sixty steps: the first twenty warm up, the next thirty are timed, five are traced. Recompilations are logged.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch

import pretune as pt
from pretune.core.config import parse_assignments
from pretune.training.async_metrics import StepMetrics
from pretune.training.loop import Loop

WARM, TIMED, TRACED = 20, 30, 5


class Profile:
    """A hook that times some steps and traces some."""

    def __init__(self) -> None:
        self.begun = self.waited = 0.0
        self.trace: Any = None

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        step = loop.state.step
        if step in (WARM, WARM + TIMED, WARM + TIMED + TRACED) and torch.cuda.is_available():
            torch.cuda.synchronize()
        if step == WARM and not self.begun:
            self.begun, self.waited = time.perf_counter(), loop.batches.wait_seconds
        elif step == WARM + TIMED and self.trace is None:
            seconds = (time.perf_counter() - self.begun) / TIMED
            waited = (loop.batches.wait_seconds - self.waited) / TIMED
            print(f"{1e3 * seconds:.1f} ms a step, {1e3 * waited:.2f} of it waiting; {loop.state.micro} micro-batches")
            kinds = [torch.profiler.ProfilerActivity.CPU]
            kinds += [torch.profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self.trace = torch.profiler.profile(activities=kinds)
            self.trace.__enter__()
        elif step == WARM + TIMED + TRACED and self.trace:
            self.trace.__exit__(None, None, None)
            for order in ("self_cuda_time_total", "self_cpu_time_total"):
                print(self.trace.key_averages().table(sort_by=order, row_limit=18, max_name_column_width=60))
            self.trace = False


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--objective")
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    torch._logging.set_logs(recompiles=True)
    run, profile = Loop.run, Profile()

    def profiled(self: Loop) -> Any:
        self.hooks = [*self.hooks, profile]
        return run(self)

    Loop.run = profiled  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        pt.pretrain(
            given.model,
            data=given.data,
            objective=given.objective,
            steps=WARM + TIMED + TRACED + 5,
            out=f"{folder}/run",
            overrides={"train.eval_tokens": 0, **parse_assignments(given.set)},
        )


if __name__ == "__main__":
    main()
