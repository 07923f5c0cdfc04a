"""Checkpoint cost: seconds the training loop is blocked, and seconds until the checkpoint is on disk.

    PYTHONPATH=src python bench/checkpoints.py [--params 30e6] [--device cpu] [--out result.json]

The tensors are an fp32 model of 12 transformer layers with both moments of Adam. The peer is `torch.save` of the same
tensors in the same run, as trainers do it, without fsync. Prints the median milliseconds of `--saves` alternated saves
after a first one, and the ratio of `torch.save` to our stall.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from pretune.training.checkpoints import CheckpointManager


def make_tensors(params: int, device: str) -> dict[str, dict[str, Tensor]]:
    """Create about `params` weights (12 layers of four w x w and two w x 4w matrices) and their Adam moments."""
    width = max(16, round((params / (12 * 12)) ** 0.5 / 16) * 16)
    shapes = {f"{n}.{part}": (width, width) for n in range(12) for part in "qkvo"}
    shapes |= {f"{n}.{part}": (width, 4 * width) for n in range(12) for part in ("in", "out")}
    made = {name: torch.randn(shape, device=device) for name, shape in shapes.items()}
    moments = {f"{name}.{which}": torch.randn_like(made[name]) for name in made for which in ("first", "second")}
    return {"model": made, "optimizer": moments}


def time_saves(groups: dict[str, dict[str, Tensor]], folder: Path, saves: int, device: str) -> dict[str, float]:
    """Return the median seconds of our saves and of `torch.save`, alternated."""
    store = CheckpointManager(folder / "checkpoints", on_warning=print)
    stalls: list[float] = []
    durable: list[float] = []
    pickled: list[float] = []
    for step in range(saves + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        stalls.append(store.save(step, groups, {"config": "bench"}))
        store.wait()
        durable.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        torch.save(groups, folder / f"peer-{step % 2}.pt")
        pickled.append(time.perf_counter() - begun)
    return {
        "first stall": stalls[0],
        "stall": statistics.median(stalls[1:]),
        "until on disk, hashed, and the previous one verified": statistics.median(durable[1:]),
        "torch.save": statistics.median(pickled[1:]),
    }


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=float, default=30e6)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    groups = make_tensors(int(options.params), options.device)
    size = sum(tensor.nbytes for group in groups.values() for tensor in group.values())
    with tempfile.TemporaryDirectory() as folder:
        found = time_saves(groups, Path(folder), options.saves, options.device)
    print(
        f"{sum(t.numel() for t in groups['model'].values()) / 1e6:.1f}M weights with Adam moments, {size / 1e6:.0f} MB"
    )
    for name, seconds in found.items():
        print(f"{seconds * 1e3:9.1f} ms  {name}  ({size / 1e9 / seconds:.2f} GB/s)")
    print(f"{found['torch.save'] / found['stall']:9.1f} x  torch.save / our stall")
    if options.out:
        options.out.write_text(json.dumps({"bytes": size, **found}, indent=2))


if __name__ == "__main__":
    main()
