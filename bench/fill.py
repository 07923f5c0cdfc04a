"""Fill rate of packed rows on prepared data, compared with best-fit packing by length bounds.

    PYTHONPATH=src python bench/fill.py DATA [--objective mixture prefix …] [--length 512] [--tokens 65536]
                                             [--samples blocks] [--out result.json]

Prints the share of row positions that hold a token (source / target), over at most forty batches of an epoch without
the last. The peer packs by best fit (`pretune.data.packing.best_fit`) with the largest length that each sequence can
have after corruption, in rows of the largest length of a full sequence, without knowing the corruption that is drawn.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any, cast

import numpy as np

from pretune.data.packing import best_fit
from pretune.data.parallel import ParallelSamples
from pretune.data.stream import BatchStream, predict_lengths
from pretune.objectives import build_objective
from pretune.objectives.base import ModelShape
from pretune.runs.training_data import DataConfig, SampleKind, TrainingData

MAX_BATCHES = 40


def measure_fill(stream: BatchStream) -> tuple[list[float], float]:
    """Return the fill rate of each side (target or only side, then source), and the CPU seconds to plan an epoch."""
    begun = time.process_time()
    plan = stream.plan(0)
    seconds = time.process_time() - begun
    steps = range(max(plan.batch_count - 1, 1))[:MAX_BATCHES]
    batches = [stream[step] for step in steps]
    sides = [batches, [batch.source for batch in batches if batch.source is not None]]
    return [float(np.mean([(one.sequence >= 0).float().mean() for one in side])) for side in sides if side], seconds


def measure_peer_fill(stream: BatchStream, length: int, filled: list[float]) -> tuple[list[float], list[int]]:
    """Return the fill rates of the same tokens packed by bounds and best fit, and the row lengths."""
    samples, lesson, plan = stream.samples, stream.corruption, stream.plan(0)
    assert lesson is not None
    known = samples.measure_lengths(samples.assign_partners(stream.mixture.draw_order(0, 0)))
    sided = isinstance(samples, ParallelSamples)
    source, target = predict_lengths(lesson, known, None) if sided else lesson.lengths(known.lengths)
    room, other = (None if side is None else int(side[0]) for side in lesson.lengths(np.array([length])))
    assert room is not None
    if target is None or other is None:
        rows = best_fit(source, room).max() + 1
        rooms = [room]
    else:
        if sided:
            other = max(int(target.max()), math.ceil(room * target.sum() / source.sum()))
        rows = best_fit(target, other, source=source, source_room=room).max() + 1
        rooms = [other, room]
    had = [stream.shape.length, stream.shape.source or 0]
    tokens = [share * (len(plan.starts) - 1) * size for share, size in zip(filled, had, strict=False)]
    return [one / (rows * size) for one, size in zip(tokens, rooms, strict=True)], rooms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--objective", nargs="*", default=["mixture", "prefix", "span_corruption"])
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--samples", default="documents")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    reading = DataConfig(path=str(options.data), max_length=options.length, samples=cast("SampleKind", options.samples))
    print(f"{'':34}{'rows':>5}{'source, target':>16}{'filled':>16}{'by bounds':>16}{'plan':>8}")
    for name in options.objective:
        for shape in build_objective(name).shapes:
            source = TrainingData.open(reading, build_objective(name), cast("ModelShape", shape))
            made = source.build_stream(
                "train", length=options.length, tokens=options.tokens, ranks=1, seed=0, has_fixed_slots=False
            )
            filled, seconds = measure_fill(made)
            before, rooms = measure_peer_fill(made, options.length, filled)
            lengths = [made.shape.length, *([] if made.shape.source is None else [made.shape.source])]
            found[f"{name} · {shape}"] = {
                "rows": made.shape.rows,
                "lengths": lengths[::-1],
                "fill": [round(one, 4) for one in filled[::-1]],
                "by_bounds": [round(one, 4) for one in before[::-1]],
                "lengths_by_bounds": rooms[::-1],
                "sequences": len(made.plan(0).order),
                "plan_s": round(seconds, 2),
            }
            sides = [" / ".join(f"{one:.1%}" for one in many[::-1]) for many in (filled, before)]
            lines = " / ".join(map(str, lengths[::-1]))
            print(f"{f'{name} · {shape}':34}{made.shape.rows:5}{lines:>16}{sides[0]:>16}{sides[1]:>16}{seconds:7.2f}s")
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
