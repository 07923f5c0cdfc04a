"""Loss curves of the fast training path, compared with an fp32 reference, two seeds each.

    PYTHONPATH=src python bench/same_learning.py --data DATA --gpt-data DATA [--steps 300] [--out curves.json]

The fast path is the default of `pretune pretrain` on the device: on CUDA bf16 with a bf16 residual stream, compiled,
with the tiled attention kernel for packed rows. The reference is fp32, not compiled, with eager attention. Data, order
and masks are the same for the same seed; dropout differs. Prints the distance of two curves, the mean absolute
difference of their losses smoothed over twenty steps: between the paths it should not exceed that between seeds.
"""

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

import pretune as pt
from pretune.core.config import parse_assignments

REFERENCE_SETTINGS = {
    "train.precision": "fp32",
    "train.residual_precision": "fp32",
    "train.compile": False,
    "train.attention_backend": "eager",
}
SMOOTH = 20


def train_losses(model: str, data: str, objective: str, steps: int, overrides: dict[str, Any]) -> list[float]:
    """Pre-train and return the training loss of every step."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        pt.pretrain(model, data=data, objective=objective, steps=steps, out=out, overrides=overrides)
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    torch._dynamo.reset()
    return [row["loss"] for row in rows if "norm" in row]


def compute_distance(curve: list[float], other: list[float]) -> float:
    """Return the mean absolute difference of two smoothed curves."""
    window = np.ones(SMOOTH) / SMOOTH
    smooth = [np.convolve(values, window, mode="valid") for values in (curve, other)]
    return float(np.abs(smooth[0] - smooth[1]).mean())


def main() -> None:
    """Train the models and print the distances."""
    parser = common.build_parser(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--gpt-data", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", default="", help="bert or gpt2")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    settings = {"train.log_every": 1, "train.eval_tokens": 0, "train.batch_tokens": 16_384, "train.lr": 1e-3}
    settings |= {"data.max_length": 128, "data.length_schedule": None, **parse_assignments(options.set)}
    gpt = {"model.width": 256, "model.depth": 4, "model.heads": 4}
    cases = {
        "bert-mini": ("bert-mini", options.data, "masked", {}),
        "gpt2 4/256": ("gpt2", options.gpt_data, "causal", gpt),
    }
    results: dict[str, Any] = {}
    for name, (model, data, objective, changes) in cases.items():
        if options.only not in name:
            continue
        curves = {}
        for path, seed in itertools.product(("fast", "reference"), (0, 1)):
            overrides = {
                **settings,
                **changes,
                "train.seed": seed,
                **(REFERENCE_SETTINGS if path == "reference" else {}),
            }
            curves[f"{path} {seed}"] = train_losses(model, data, objective, options.steps, overrides)
        results[name] = {
            "fast to reference": [
                round(compute_distance(curves[f"fast {s}"], curves[f"reference {s}"]), 5) for s in (0, 1)
            ],
            "seed to seed": [
                round(compute_distance(curves[f"{p} 0"], curves[f"{p} 1"]), 5) for p in ("fast", "reference")
            ],
            "last": {key: round(float(np.mean(values[-SMOOTH:])), 4) for key, values in curves.items()},
            "curves": curves,
        }
        print(name, json.dumps({key: value for key, value in results[name].items() if key != "curves"}), flush=True)
    common.write_result(results, options.out)


if __name__ == "__main__":
    main()
