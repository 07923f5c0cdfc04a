"""Packing plan of an epoch: the row and batch of each draw, computed once from lengths alone.

The draws come in their keyed order and are cut into windows of fixed size. Each window is packed best-fit by itself,
and its rows are shuffled by key, so that long and short sequences meet in every batch. Batches are consecutive rows;
the last one of an epoch may have empty rows. So nothing is lost or read twice, and the batch of any step is a slice.

    plan = make_plan(lengths, shape, seed=0, epoch=0)
    which, row = plan.batch(7)                            # the draws of a batch and the row of each
    which, row = plan.batch(7, part=1, parts=4)           # those of rank 1 of 4: the second quarter of the rows
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.core.io import atomic_directory, read_json, write_json
from pretune.data.batch_shape import BatchShape
from pretune.data.counters import Purpose, shuffle_by_key
from pretune.data.packing import pack
from pretune.data.ragged import Ints, compute_offsets
from pretune.data.shards.npy import NpyWriter, open_npy

WINDOW_SIZE = 2**18
"""Draws that are packed together."""

_VERSION = 3  # of the method: a plan of another version in a cache is not used


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingPlan:
    """Rows of draws; `rows` of them make a batch."""

    order: Ints  # [n] draws, row after row
    starts: Ints  # [rows in all + 1] where each row starts in `order`
    rows: int
    fill: float  # the share of the rows' tokens that is not filler
    source_fill: float | None = None

    @property
    def batch_count(self) -> int:
        """Number of batches; the last one may not be full."""
        return -(-(len(self.starts) - 1) // self.rows)

    def get_batch(self, step: int, part: int = 0, parts: int = 1) -> tuple[Ints, Ints]:
        """The draws of a batch, or of one of several equal parts of its rows, and the row of each."""
        if not 0 <= step < self.batch_count:
            raise UsageError(f"batch {step} is not one of the {self.batch_count} of this epoch")
        if not 0 <= part < parts or self.rows % parts:
            raise UsageError(f"part {part} of {parts} is no equal part of {self.rows} rows")
        size = self.rows // parts
        first = step * self.rows + part * size
        edges = self.starts[first : first + size + 1]  # shorter, or empty, where the epoch ends
        if not len(edges):
            edges = self.starts[-1:]
        return self.order[edges[0] : edges[-1]], np.repeat(np.arange(len(edges) - 1), np.diff(edges))


def build_plan(
    lengths: Ints,
    shape: BatchShape,
    *,
    seed: int,
    epoch: int,
    source: Ints | None = None,
    window: int = WINDOW_SIZE,
    cache: Path | None = None,
) -> PackingPlan:
    """The plan for draws of these lengths (and source lengths), taken from the cache where it has it."""
    if window < 1 or (source is None) != (shape.source is None):
        raise UsageError(
            "a plan needs a window of at least 1, and source lengths if and only if rows have a source side"
        )
    if cache is None:
        return _pack_plan(lengths, shape, seed, epoch, source, window)
    facts: dict[str, int | None] = {
        "version": _VERSION,
        "seed": seed,
        "epoch": epoch,
        "window": window,
        "n": len(lengths),
        "rows": shape.rows,
    }
    facts |= {"length": shape.length, "source": shape.source, "sequences": shape.sequences}
    digest = hashlib.sha256(json.dumps(facts, allow_nan=False).encode())
    for part in (lengths, source):
        digest.update(b"-" if part is None else np.ascontiguousarray(part, dtype="<i8").data)
    folder = cache / f"plan-{digest.hexdigest()[:32]}"
    plan = _load(folder, shape.rows, len(lengths))
    if plan is None:
        plan = _pack_plan(lengths, shape, seed, epoch, source, window)
        _save(folder, plan)
    return plan


def _pack_plan(
    lengths: Ints, shape: BatchShape, seed: int, epoch: int, source: Ints | None, window: int
) -> PackingPlan:
    rows = np.empty(len(lengths), dtype=np.int64)
    total = 0
    for start in range(0, len(lengths), window):
        part = slice(start, start + window)
        sides = None if source is None else source[part]
        window_rows = pack(
            lengths[part], shape.length, max_sequences=shape.sequences, source=sides, source_room=shape.source
        )
        count = int(window_rows.max()) + 1
        place = np.empty(count, dtype=np.int64)
        place[shuffle_by_key(seed, Purpose.ROWS, epoch, np.arange(total, total + count)) - total] = np.arange(count)
        rows[part] = total + place[window_rows]
        total += count
    return PackingPlan(
        order=np.argsort(rows, kind="stable"),
        starts=compute_offsets(np.bincount(rows, minlength=total)),
        rows=shape.rows,
        fill=_compute_fill(lengths, total, shape.length),
        source_fill=None if source is None or shape.source is None else _compute_fill(source, total, shape.source),
    )


def _compute_fill(lengths: Ints, rows: int, length: int) -> float:
    return float(lengths.sum() / max(rows * length, 1))


def _save(folder: Path, plan: PackingPlan) -> None:
    """Publish a plan at once; whoever comes second finds the first one's, which is the same."""
    try:
        with atomic_directory(folder, overwrite=True) as temporary:  # over one that is damaged
            for name in ("order", "starts"):
                with NpyWriter(temporary / f"{name}.npy", "<i8") as file:
                    file.append(getattr(plan, name))
            facts = {"rows": len(plan.starts) - 1, "fill": plan.fill, "source_fill": plan.source_fill}
            write_json(temporary / "plan.json", facts)
    except UsageError:
        if not folder.is_dir():
            raise


def _load(folder: Path, rows: int, draws: int) -> PackingPlan | None:
    """A plan out of the cache; None if it is not there or not whole, for it can always be made again."""
    try:
        facts = read_json(folder / "plan.json", DataError)
        order = open_npy(folder / "order.npy", "<i8", draws)
        starts = open_npy(folder / "starts.npy", "<i8", int(facts["rows"]) + 1)
        if starts[0] != 0 or starts[-1] != draws:
            return None
        return PackingPlan(
            order=order.view(np.int64),
            starts=starts.view(np.int64),
            rows=rows,
            fill=float(facts["fill"]),
            source_fill=None if facts["source_fill"] is None else float(facts["source_fill"]),
        )
    except (PretuneError, KeyError, TypeError, ValueError, OverflowError):
        return None
