"""Throughput by sequence length, width, vocabulary and batch size, compared with transformers, with plots.

    PYTHONPATH=src python bench/growth.py --out growth/ [--only length,width] [--minutes 8] [--compiled [--mode MODE]]

A causal model (GPT-2 blocks, 12 layers of 768, vocabulary 50,257, 65,536 tokens per step, no dropout) of which one
dimension changes at a time; forward, backward and fused AdamW in bf16 autocast on CUDA, small sizes in fp32 on a CPU.
Ours runs as `pretune pretrain` does; the peer is eager, and with `--compiled` also compiled. At each point all sides
alternate in one process and the median of three rounds counts. A side that runs out of memory is measured again alone;
failures and points beyond the time limit are reported. Points that growth.json holds for all sides are not repeated.
Writes growth.json and growth.svg.
"""

import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from core_throughput import CudaGraphSide, Side, build_loss, use_bf16_residual

import pretune as pt
from pretune.core.types import Targets

OURS, PEER, COMPILED_PEER = "pretune", "transformers", "transformers + compile"


@dataclass(frozen=True)
class Point:
    """One configuration to measure."""

    length: int = 1024
    width: int = 768
    vocab: int = 50_257
    tokens: int = 65_536
    depth: int = 12


AXES = {
    "length": (128, 8192, 2048, 512),
    "width": (256, 2048, 1024),
    "tokens": (4_096, 16_384),
    "vocab": (8_192, 131_072),
}
LABELS = {"length": "tokens per sequence", "width": "width", "tokens": "tokens per step", "vocab": "vocabulary"}
SMALL = Point(length=128, width=128, vocab=4_096, tokens=1_024, depth=2)
SMALL_AXES = {"length": (64, 256, 512), "width": (64, 256), "vocab": (1_024, 16_384), "tokens": (256, 4_096)}


def iterate_points(base: Point, axes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, Point]]:
    """Yield the base point, then points with one dimension changed."""
    yield "base", base
    for axis, values in axes.items():
        for value in values:
            yield (
                axis,
                replace(base, **{axis: value}, **({"tokens": max(base.tokens, value)} if axis == "length" else {})),
            )


def build_steps(point: Point, device: str, sides_to_run: set[str], mode: str | None) -> dict[str, Callable[[], None]]:
    """Build a training step of each requested side, on the same tokens."""
    heads = max(point.width // 64, 1)
    ids = np.random.default_rng(0).integers(5, point.vocab, (max(point.tokens // point.length, 1), point.length))
    sides: dict[str, Callable[[], None]] = {}
    if OURS in sides_to_run:
        ours = pt.build(
            "gpt2",
            device=device,
            vocab=point.vocab,
            width=point.width,
            depth=point.depth,
            heads=heads,
            dropout=0.0,
            hidden=4 * point.width,
            positions=point.length,
        )
        keep = torch.arange(ids.size).view(ids.shape)[:, :-1].reshape(-1)
        targets = Targets(index=keep, labels=torch.from_numpy(ids[:, 1:].reshape(-1)))
        batch = replace(pt.batch(ids), targets=targets).to(device)
        if device == "cuda":
            use_bf16_residual(ours).compile(dynamic=False)
            mine: Side = CudaGraphSide(OURS, ours.train(), device)
        else:
            mine = Side(OURS, ours, build_loss(ours), device)
        sides[OURS] = lambda: mine.step(batch)
    if sides_to_run & {PEER, COMPILED_PEER}:
        with torch.device(device):
            theirs = common.build_gpt2(
                dropout=0.0,
                vocab_size=point.vocab,
                n_positions=point.length,
                n_embd=point.width,
                n_layer=point.depth,
                n_head=heads,
            ).train()
        common.disable_attention_mask(theirs)
        tokens = torch.from_numpy(ids).to(device)
    if PEER in sides_to_run:
        peer = Side(PEER, theirs, lambda ids: theirs(input_ids=ids, labels=ids).loss, device)
        sides[PEER] = lambda: peer.step(tokens)
    if COMPILED_PEER in sides_to_run:
        run = torch.compile(theirs, mode=mode)
        compiled_side = Side(COMPILED_PEER, theirs, lambda ids: run(input_ids=ids, labels=ids).loss, device)
        sides[COMPILED_PEER] = lambda: compiled_side.step(tokens)
    return sides


def measure(point: Point, device: str, sides_to_run: set[str], mode: str | None) -> dict[str, int]:
    """Return tokens per second of the sides, alternated; a side that fails is measured again alone."""
    sides = build_steps(point, device, sides_to_run, mode)
    tokens = max(point.tokens // point.length, 1) * point.length
    for name, step in list(sides.items()):
        try:
            for _ in range(5 if name == OURS else 2):  # our CUDA graph is captured in the fourth step
                step()
        except (torch.OutOfMemoryError, RuntimeError) as error:
            print(
                f"{point}: {name} with {len(sides_to_run) - 1} others: {str(error).splitlines()[0][:100]}", flush=True
            )
            del sides[name]
    counts = {name: 4 if name == OURS else 2 for name in sides}
    measurements = {
        name: partial(common.measure_seconds, step, count=counts[name], clock=common.wall_clock, device=device)
        for name, step in sides.items()
    }
    seconds = common.compute_medians(common.alternate(measurements, 3, warmup=0))
    rates = {name: round(tokens / value) for name, value in seconds.items()}
    step = None  # type: ignore[assignment]
    sides.clear()
    measurements.clear()
    free_memory(device)
    for name in sides_to_run - rates.keys() if len(sides_to_run) > 1 else ():
        rates |= measure(point, device, {name}, mode)
    return rates


def free_memory(device: str) -> None:
    """Free unused device memory."""
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def plot(rows: list[dict[str, Any]], out: Path) -> None:
    """Plot tokens per second, one panel per dimension."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.close("all")
    axes = [axis for axis in AXES if any(row["axis"] == axis for row in rows)]
    figure, panels = plt.subplots(1, max(len(axes), 1), figsize=(3.6 * max(len(axes), 1), 3.2), squeeze=False)
    for axis, panel in zip(axes, panels[0], strict=False):
        for name in (OURS, COMPILED_PEER, PEER):
            points = sorted(
                (row[axis], row["rates"][name])
                for row in rows
                if row["axis"] in (axis, "base") and name in row["rates"]
            )
            if points:
                panel.plot(*zip(*points, strict=True), marker="o", label=name)
        panel.set(xscale="log", xlabel=LABELS[axis], ylim=(0, None))
        values = sorted({row[axis] for row in rows if row["axis"] in (axis, "base")})
        panel.set_xticks(values, [f"{value:,}" for value in values], fontsize=7)
        panel.minorticks_off()
        panel.yaxis.set_major_formatter(lambda rate, _: f"{rate / 1000:,.0f}k" if rate else "0")
    panels[0][0].set_ylabel("tokens/s")
    panels[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out / "growth.svg")


def main() -> None:
    """Measure the points and plot them."""
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("--out", type=Path, required=True, help="folder for growth.json and growth.svg")
    parser.add_argument("--only", default=",".join(AXES), help="comma-separated dimensions")
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit")
    parser.add_argument(
        "--compiled", action="store_true", help="also measure the compiled peer (half a minute more per point)"
    )
    parser.add_argument("--mode", help="torch.compile mode of the peer")
    options = parser.parse_args()
    device = common.find_device()
    torch.set_float32_matmul_precision("high")
    base, axes = (Point(), AXES) if device == "cuda" else (SMALL, SMALL_AXES)
    options.out.mkdir(parents=True, exist_ok=True)
    start, file = time.monotonic(), options.out / "growth.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.is_file() else []
    sides_to_run = {OURS, PEER, *([COMPILED_PEER] if options.compiled and device == "cuda" else [])}
    for axis, point in iterate_points(base, {name: axes[name] for name in options.only.split(",")}):
        settings = {"axis": axis, **asdict(point)}
        if any(row.items() >= settings.items() and row["rates"].keys() >= sides_to_run for row in rows):
            continue
        if time.monotonic() - start > 60 * options.minutes and rows:
            print(f"{axis}: out of time, skipped {point}", flush=True)
            continue
        rows = [row for row in rows if not row.items() >= settings.items()]
        rows.append({**settings, "rates": measure(point, device, sides_to_run, options.mode)})
        print(json.dumps(rows[-1]), flush=True)
        file.write_text(json.dumps({"device": device, "rows": rows}, indent=1) + "\n")
        plot(rows, options.out)


if __name__ == "__main__":
    main()
