"""Fill rate of packed rows on prepared data, compared with best-fit packing by length bounds.

    python -m bench.data.fill DATA [--objective mixture prefix …] [--length 512] [--tokens 65536]
                                             [--samples blocks] [--out result.json]

Prints the share of row positions that hold a token (source / target), over at most forty batches of an epoch without
the last. The peer packs by best fit (`pretune.data.packing.best_fit`) with the largest length that each sequence can
have after corruption, in rows of the largest length of a full sequence, without knowing the corruption that is drawn.
"""

import math
from pathlib import Path
from typing import Any, cast

import numpy as np

from bench import common
from pretune.data.packing import best_fit
from pretune.data.pairs import ParallelSamples
from pretune.data.stream import BatchStream
from pretune.objectives import build_objective
from pretune.objectives.base import ModelShape
from pretune.runs.config import DataConfig, SampleKind
from pretune.runs.training_data import TrainingData

MAX_BATCHES = 40


def measure_fill(stream: BatchStream) -> tuple[list[float], float]:
    """Return the fill rate of each side (target or only side, then source), and the CPU seconds to plan an epoch."""
    seconds, plan = common.time_call(lambda: stream.plan(0))
    steps = range(max(plan.batch_count - 1, 1))[:MAX_BATCHES]
    batches = [stream[step] for step in steps]
    sides = [batches, [batch.source for batch in batches if batch.source is not None]]
    return [float(np.mean([(batch.sequence >= 0).float().mean() for batch in side])) for side in sides if side], seconds


def measure_peer_fill(stream: BatchStream, length: int, fill: list[float]) -> tuple[list[float], list[int]]:
    """Return the fill rates of the same tokens packed by bounds and best fit, and the row lengths."""
    samples, corruption, plan = stream.samples, stream.corruption, stream.plan(0)
    assert corruption is not None
    lengths = samples.measure_lengths(samples.assign_partners(stream.mixture.draw_order(0, 0)))
    is_parallel = isinstance(samples, ParallelSamples)
    source, target = corruption.predict_lengths(lengths, None) if is_parallel else corruption.lengths(lengths.lengths)
    room, target_room = (None if side is None else int(side[0]) for side in corruption.lengths(np.array([length])))
    assert room is not None
    if target is None or target_room is None:
        rows = best_fit(source, room).max() + 1
        rooms = [room]
    else:
        if is_parallel:
            target_room = max(int(target.max()), math.ceil(room * target.sum() / source.sum()))
        rows = best_fit(target, target_room, source=source, source_room=room).max() + 1
        rooms = [target_room, room]
    row_lengths = [stream.shape.length, stream.shape.source or 0]
    tokens = [share * (len(plan.starts) - 1) * size for share, size in zip(fill, row_lengths, strict=False)]
    return [count / (rows * size) for count, size in zip(tokens, rooms, strict=True)], rooms


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--objective", nargs="*", default=["mixture", "prefix", "span_corruption"])
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--samples", default="documents")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    config = DataConfig(path=str(options.data), max_length=options.length, samples=cast("SampleKind", options.samples))
    print(f"{'':34}{'rows':>5}{'source, target':>16}{'fill':>16}{'by bounds':>16}{'plan':>8}")
    for name in options.objective:
        for shape in build_objective(name).shapes:
            source = TrainingData.open(config, build_objective(name), cast("ModelShape", shape))
            stream = source.build_stream(
                "train", length=options.length, tokens=options.tokens, ranks=1, seed=0, has_fixed_slots=False
            )
            fill, seconds = measure_fill(stream)
            peer_fill, rooms = measure_peer_fill(stream, options.length, fill)
            lengths = [stream.shape.length, *([] if stream.shape.source is None else [stream.shape.source])]
            result[f"{name} · {shape}"] = {
                "rows": stream.shape.rows,
                "lengths": lengths[::-1],
                "fill": [round(share, 4) for share in fill[::-1]],
                "by_bounds": [round(share, 4) for share in peer_fill[::-1]],
                "lengths_by_bounds": rooms[::-1],
                "sequences": len(stream.plan(0).order),
                "plan_s": round(seconds, 2),
            }
            sides = [" / ".join(f"{share:.1%}" for share in shares[::-1]) for shares in (fill, peer_fill)]
            rows = " / ".join(map(str, lengths[::-1]))
            print(f"{f'{name} · {shape}':34}{stream.shape.rows:5}{rows:>16}{sides[0]:>16}{sides[1]:>16}{seconds:7.2f}s")
    common.write_result(result, options.out)


if __name__ == "__main__":
    main()
