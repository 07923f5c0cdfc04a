"""Checkpoint cost: seconds the training loop is blocked, and seconds until the checkpoint is on disk.

    python -m bench.speed.checkpoints [--params 30e6] [--device cpu] [--out result.json]

The tensors are an fp32 model of 12 transformer layers with both moments of Adam. The peer is `torch.save` of the same
tensors in the same run, as trainers do it, without fsync. Prints the median milliseconds of `--saves` alternated saves
after a first one, and the ratio of `torch.save` to our stall.
"""

import tempfile
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from bench import common
from pretune.training.checkpoints.manager import CheckpointManager


def make_tensors(params: int, device: str) -> dict[str, dict[str, Tensor]]:
    """Create about `params` weights (12 layers of four w x w and two w x 4w matrices) and their Adam moments."""
    width = max(16, round((params / (12 * 12)) ** 0.5 / 16) * 16)
    shapes = {f"{n}.{part}": (width, width) for n in range(12) for part in "qkvo"}
    shapes |= {f"{n}.{part}": (width, 4 * width) for n in range(12) for part in ("in", "out")}
    weights = {name: torch.randn(shape, device=device) for name, shape in shapes.items()}
    moments = {
        f"{name}.{moment}": torch.randn_like(weights[name]) for name in weights for moment in ("first", "second")
    }
    return {"model": weights, "optimizer": moments}


def time_saves(groups: dict[str, dict[str, Tensor]], folder: Path, saves: int, device: str) -> dict[str, float]:
    """Return the median seconds of our saves and of `torch.save`, alternated."""
    manager = CheckpointManager(folder / "checkpoints", on_warning=print)
    stalls: list[float] = []
    durable: list[float] = []
    peer: list[float] = []
    for step in range(saves + 1):
        common.synchronize(device)
        start = common.wall_clock()
        stalls.append(manager.save(step, groups, {"config": "bench"}))
        manager.wait()
        durable.append(common.wall_clock() - start)
        path = folder / f"peer-{step % 2}.pt"
        peer.append(common.measure_seconds(lambda path=path: torch.save(groups, path), clock=common.wall_clock))
    return {
        "first stall": stalls[0],
        "stall": median(stalls[1:]),
        "until on disk, hashed, and the previous one verified": median(durable[1:]),
        "torch.save": median(peer[1:]),
    }


def main() -> None:
    """Measure, and print the table."""
    parser = common.build_parser(__doc__)
    parser.add_argument("--params", type=float, default=30e6)
    parser.add_argument("--saves", type=int, default=5)
    common.add_device_option(parser)
    options = parser.parse_args()
    groups = make_tensors(int(options.params), options.device)
    size = sum(tensor.nbytes for group in groups.values() for tensor in group.values())
    with tempfile.TemporaryDirectory() as folder:
        times = time_saves(groups, Path(folder), options.saves, options.device)
    print(
        f"{sum(t.numel() for t in groups['model'].values()) / 1e6:.1f}M weights with Adam moments, {size / 1e6:.0f} MB"
    )
    for name, seconds in times.items():
        print(f"{seconds * 1e3:9.1f} ms  {name}  ({size / 1e9 / seconds:.2f} GB/s)")
    print(f"{times['torch.save'] / times['stall']:9.1f} x  torch.save / our stall")
    common.write_result({"bytes": size, **times}, options.out)


if __name__ == "__main__":
    main()
