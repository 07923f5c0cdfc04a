"""Cost of text samples during training (default `train.samples_every`).

    PYTHONPATH=src python bench/samples.py --data DATA --model gpt2 --steps 600 [--set model.depth=2 …]

One run of `pretune pretrain`, with every look and every step timed: the share of the run that all looks took, which is
to be about a hundredth at most, and what a look cost in steps, beside what was reckoned with
(`samples.estimate_sample_cost`). The weights must be those of a run that is never asked; `--exact` makes that run too,
and compares (on CUDA it also sets `train.deterministic`).
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import pretune as pt
from pretune.runs import pretrain_run, samples
from pretune.training.loop import Loop


def patch_timing(looks: list[tuple[int, float]], reckoned: list[float]) -> None:
    """Have looks tell their time, and sessions the price that they reckon with."""
    ask, price = samples.SampleHook._sample, samples.estimate_sample_cost

    def asked(self: samples.SampleHook, loop: Loop) -> list[str]:
        begun = time.monotonic()
        found = ask(self, loop)
        looks.append((loop.state.step, time.monotonic() - begun))
        return found

    def priced(*args: Any) -> float:
        reckoned.append(price(*args))
        return reckoned[-1]

    samples.SampleHook._sample = asked  # type: ignore[method-assign]
    pretrain_run.estimate_sample_cost = priced  # type: ignore[assignment, attr-defined]


def main() -> None:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--model", default="bert-tiny")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--exact", action="store_true")
    given = parser.parse_args()
    changes: dict[str, Any] = dict(one.split("=", 1) for one in given.set)
    changes |= {"train.log_every": 1} | ({"train.deterministic": "true"} if given.exact else {})
    looks: list[tuple[int, float]] = []
    reckoned: list[float] = []
    patch_timing(looks, reckoned)
    with tempfile.TemporaryDirectory() as folder:
        wish: dict[str, Any] = {"data": given.data, "steps": given.steps}
        begun = time.monotonic()
        run = pt.pretrain(given.model, out=Path(folder) / "asked", overrides=changes, **wish)
        wall = time.monotonic() - begun
        lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
        marks = [line["seconds"] for line in lines if "seconds" in line]
        same = None
        if given.exact:
            other = pt.pretrain(
                given.model, out=Path(folder) / "not", overrides={**changes, "train.samples_every": 0}, **wish
            )
            same = (run.path / "model.safetensors").read_bytes() == (other.path / "model.safetensors").read_bytes()
    step = statistics.median(later - sooner for sooner, later in itertools.pairwise(marks))
    found = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "model": given.model,
        "wall_s": round(wall, 2),
        "step_s": round(step, 5),
        "looks": [(at, round(seconds, 4)) for at, seconds in looks],
        "share_of_the_run": round(sum(seconds for _, seconds in looks) / wall, 5),
        "a_look_in_steps": round(statistics.median(seconds for _, seconds in looks) / step, 3) if looks else None,
        "reckoned_in_steps": round(reckoned[0], 3),
        "same_weights": same,
    }
    print(json.dumps(found))
    if same is False:
        raise SystemExit("the weights differ")


if __name__ == "__main__":
    main()
