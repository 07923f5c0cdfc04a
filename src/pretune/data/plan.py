"""Shape of a batch, fixed by a token budget so that a model compiles once, and the packing plan of an epoch.

The plan is the row and batch of each draw, computed once from lengths alone.

The draws, in random order, are divided into windows of fixed size. Each window is packed separately and its rows are
shuffled, so every batch has long and short sequences. A batch is a range of consecutive rows; the last batch of an
epoch may have empty rows. So every draw is read exactly once, and the batch of any step is a slice.

    plan = build_plan(lengths, shape, seed=0, epoch=0)
    draws, row = plan.get_batch(7)                        # the draws of a batch and the row of each
    draws, row = plan.get_batch(7, part=1, parts=4)       # rank 1 of 4: the second quarter of the rows
"""

import hashlib
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from pretune.core.config import Gt, Le, NonNegative, Positive, spec
from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.core.io import atomic_directory, read_json, write_json
from pretune.data.packing import pack
from pretune.data.sampling import Purpose, shuffle_by_key
from pretune.data.sequences import Ints, compute_offsets
from pretune.data.shards.files import NpyWriter, open_npy


@spec
class BatchShape:
    """Shape of a batch: `rows` rows of `length` tokens, and of `source` tokens on the encoder side.

    A field that is None is not fixed. Raises `UsageError` if `slots` is negative or another field is below 1.
    """

    rows: Positive[int]
    length: Positive[int]
    source: Positive[int] | None = None
    sequences: Positive[int] | None = None  # maximum per row
    slots: NonNegative[int] | None = None  # target slots per row

    @property
    def cells(self) -> int | None:
        """C: the number of cells, `sequences` + 1 per row (one for filler); None if `sequences` is None."""
        return None if self.sequences is None else self.rows * (self.sequences + 1)

    @property
    def targets(self) -> int | None:
        """M: the number of target slots of all rows; None if `slots` is None."""
        return None if self.slots is None else self.rows * self.slots

    def divide(self, parts: int) -> "BatchShape":
        """Return the shape of one of `parts` equal parts of the rows: a rank's share or a micro-batch.

        Raises `UsageError` if `rows` is not divisible by `parts`.
        """
        if parts < 1 or self.rows % parts:
            raise UsageError(
                f"{self.rows} rows cannot be divided into {parts} equal parts; change the tokens per batch"
            )
        return replace(self, rows=self.rows // parts)


@spec
class Phase:
    """Phase of a schedule: a share of the steps with one row length."""

    share: Annotated[float, Gt(0), Le(1)]
    length: Positive[int]


@spec
class LengthSchedule:
    """Length schedule: consecutive phases whose shares add up to 1, with the same number of tokens in every step.

    BERT (Devlin et al., 2019, A.2) trains 90 % of the steps on sequences of 128 tokens and the rest on 512:

        LengthSchedule(phases=(Phase(share=0.9, length=128), Phase(share=0.1, length=512)))
    """

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1) > 1e-6:
            raise UsageError(f"the shares of a length schedule must add up to 1, got {total:.6g}")

    @property
    def ends(self) -> tuple[float, ...]:
        """Share of the run at the end of each phase."""
        return tuple(itertools.accumulate(phase.share for phase in self.phases))

    def divide(self, steps: int) -> list[int]:
        """Return the number of steps of each phase in a run of `steps` steps.

        >>> LengthSchedule(phases=(Phase(share=0.9, length=128), Phase(share=0.1, length=512))).divide(1000)
        [900, 100]
        """
        last_steps = [*(round(end * steps) for end in self.ends[:-1]), steps]
        return [last - first for first, last in itertools.pairwise([0, *last_steps])]


WINDOW_SIZE = 2**18
"""Number of draws that are packed together."""

_VERSION = 3  # version of the packing method: cached plans of other versions are ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingPlan:
    """Assignment of the draws of an epoch to rows; a batch has `rows` rows."""

    order: Ints  # [n] draws, sorted by row
    starts: Ints  # [total rows + 1] start of each row in `order`
    rows: int
    fill: float  # share of the row tokens that is not filler
    source_fill: float | None = None  # the same for the encoder side

    @property
    def batch_count(self) -> int:
        """Number of batches; the last one may not be full."""
        return -(-(len(self.starts) - 1) // self.rows)

    def get_batch(self, step: int, part: int = 0, parts: int = 1) -> tuple[Ints, Ints]:
        """Return the draws of a batch and the row of each; of part `part` of `parts` equal parts of its rows.

        Raises `UsageError` if the epoch has no batch `step`, or the rows have no such part.
        """
        if not 0 <= step < self.batch_count:
            raise UsageError(f"batch {step} does not exist; this epoch has {self.batch_count} batches, counted from 0")
        if not 0 <= part < parts or self.rows % parts:
            raise UsageError(f"part {part} of {parts} is not an equal part of {self.rows} rows")
        size = self.rows // parts
        first = step * self.rows + part * size
        edges = self.starts[first : first + size + 1]  # shorter or empty at the end of the epoch
        if not len(edges):
            edges = self.starts[-1:]
        return self.order[edges[0] : edges[-1]], np.repeat(np.arange(len(edges) - 1), np.diff(edges))

    def accumulate(self, values: Ints) -> Ints:
        """Return the sum of the values [n] of the draws before each batch, and of all of them: [batches + 1]."""
        rows = np.minimum(np.arange(self.batch_count + 1) * self.rows, len(self.starts) - 1)
        return compute_offsets(values[self.order])[self.starts[rows]]


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
    """Return the packing plan for draws of these lengths, from the cache directory if it has the plan.

    `source` holds the lengths on the encoder side, `window` is the number of draws packed together. A computed plan is
    written to `cache`. Raises `UsageError` if `window` is below 1, or only one of `source` and `shape.source` is given.
    """
    if window < 1 or (source is None) != (shape.source is None):
        raise UsageError(
            f"a plan needs window >= 1, got {window}, and source lengths if and only if the shape has a source length"
        )
    if cache is None:
        return _pack_plan(lengths, shape, seed, epoch, source, window)
    settings: dict[str, int | None] = {"version": _VERSION, "seed": seed, "epoch": epoch, "window": window}
    settings |= {"n": len(lengths), "rows": shape.rows}
    settings |= {"length": shape.length, "source": shape.source, "sequences": shape.sequences}
    digest = hashlib.sha256(json.dumps(settings, allow_nan=False).encode())
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
    """Compute a plan: pack each window, shuffle its rows, and sort the draws by row."""
    rows = np.empty(len(lengths), dtype=np.int64)
    total = 0
    for start in range(0, len(lengths), window):
        part = slice(start, start + window)
        window_source = None if source is None else source[part]
        window_rows = pack(
            lengths[part], shape.length, max_sequences=shape.sequences, source=window_source, source_room=shape.source
        )
        count = int(window_rows.max()) + 1
        new_rows = np.empty(count, dtype=np.int64)  # new index of each row of the window
        new_rows[shuffle_by_key(seed, Purpose.ROWS, epoch, np.arange(total, total + count)) - total] = np.arange(count)
        rows[part] = total + new_rows[window_rows]
        total += count
    return PackingPlan(
        order=np.argsort(rows, kind="stable"),
        starts=compute_offsets(np.bincount(rows, minlength=total)),
        rows=shape.rows,
        fill=_compute_fill(lengths, total, shape.length),
        source_fill=None if source is None or shape.source is None else _compute_fill(source, total, shape.source),
    )


def _compute_fill(lengths: Ints, rows: int, length: int) -> float:
    """Return the share of the tokens of `rows` rows of `length` tokens that the sequences fill."""
    return float(lengths.sum() / max(rows * length, 1))


def _save(folder: Path, plan: PackingPlan) -> None:
    """Write a plan to the cache atomically; keep the identical plan of a process that wrote it at the same time."""
    try:
        with atomic_directory(folder, overwrite=True) as temporary:  # replaces a damaged plan
            for name in ("order", "starts"):
                with NpyWriter(temporary / f"{name}.npy", "<i8") as file:
                    file.append(getattr(plan, name))
            metadata = {"rows": len(plan.starts) - 1, "fill": plan.fill, "source_fill": plan.source_fill}
            write_json(temporary / "plan.json", metadata)
    except UsageError:
        if not folder.is_dir():
            raise


def _load(folder: Path, rows: int, draws: int) -> PackingPlan | None:
    """Return a plan from the cache; None if it is missing or damaged, so that the caller computes it again."""
    try:
        metadata = read_json(folder / "plan.json", DataError)
        order = open_npy(folder / "order.npy", "<i8", draws)
        starts = open_npy(folder / "starts.npy", "<i8", int(metadata["rows"]) + 1)
        if starts[0] != 0 or starts[-1] != draws:
            return None
        return PackingPlan(
            order=order.view(np.int64),
            starts=starts.view(np.int64),
            rows=rows,
            fill=float(metadata["fill"]),
            source_fill=None if metadata["source_fill"] is None else float(metadata["source_fill"]),
        )
    except (PretuneError, KeyError, TypeError, ValueError, OverflowError):
        return None
