"""The fast path learns what the plain path learns: loss curves of both, two seeds each.

    PYTHONPATH=src python bench/same_learning.py --data DATA --gpt-data DATA [--steps 300] [--out curves.json]

Fast is what `pretune pretrain` does on the device at hand: on CUDA bf16 with a bf16 residual stream, compiled, packed
rows with a kernel of their own. Plain is fp32, not compiled, with attention spelled out. Same data, same order, same
masks for the same seed; dropout draws differ. The distance of two curves is the mean over the steps of the difference
of their losses, smoothed over twenty steps: that between the paths must be no larger than that between seeds.
"""

import argparse
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pretune as pt
from pretune.core import io

EXACT_SETTINGS = {
    "train.precision": "fp32",
    "train.residual_precision": "fp32",
    "train.compile": False,
    "train.attention_backend": "eager",
}
SMOOTH = 20


def train_losses(model: str, data: str, objective: str, steps: int, changes: dict[str, Any]) -> list[float]:
    """The training loss of every step."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        pt.pretrain(model, data=data, objective=objective, steps=steps, out=out, overrides=changes)
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    torch._dynamo.reset()
    return [row["loss"] for row in rows if "norm" in row]


def compute_distance(one: list[float], other: list[float]) -> float:
    window = np.ones(SMOOTH) / SMOOTH
    smooth = [np.convolve(values, window, mode="valid") for values in (one, other)]
    return float(np.abs(smooth[0] - smooth[1]).mean())


def main() -> None:
    """Train eight small models, and print the distances."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--gpt-data", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", default="", help="bert or gpt2")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    from pretune.core.config import parse_assignments

    common = {"train.log_every": 1, "train.eval_tokens": 0, "train.batch_tokens": 16_384, "train.lr": 1e-3}
    common |= {"data.max_length": 128, "data.length_schedule": None, **parse_assignments(given.set)}
    gpt = {"model.width": 256, "model.depth": 4, "model.heads": 4}
    work = {
        "bert-mini": ("bert-mini", given.data, "masked", {}),
        "gpt2 4/256": ("gpt2", given.gpt_data, "causal", gpt),
    }
    results: dict[str, Any] = {}
    for name, (model, data, objective, changes) in work.items():
        if given.only not in name:
            continue
        curves = {}
        for path, seed in itertools.product(("fast", "plain"), (0, 1)):
            wishes = {**common, **changes, "train.seed": seed, **(EXACT_SETTINGS if path == "plain" else {})}
            curves[f"{path} {seed}"] = train_losses(model, data, objective, given.steps, wishes)
        results[name] = {
            "fast to plain": [round(compute_distance(curves[f"fast {s}"], curves[f"plain {s}"]), 5) for s in (0, 1)],
            "seed to seed": [round(compute_distance(curves[f"{p} 0"], curves[f"{p} 1"]), 5) for p in ("fast", "plain")],
            "last": {key: round(float(np.mean(values[-SMOOTH:])), 4) for key, values in curves.items()},
            "curves": curves,
        }
        print(name, json.dumps({key: value for key, value in results[name].items() if key != "curves"}), flush=True)
    if given.out:
        io.write_json(given.out, results)


if __name__ == "__main__":
    main()
