"""The batches of a task: every item once in an epoch, in an order that follows from the seed.

    stream = TaskStream(encoder.encode(examples), batch=32, seed=0)
    stream[1000]                                     # the batch of step 1000, whoever asks, whatever was asked before
    stream.batch(1000, part=1, parts=4)              # a quarter of its items: of a rank, of a micro-batch

A step has a fixed number of items, so that a batch size means here what it means in papers; they are packed into rows.
A stream goes on for ever, and is what `train.feed` asks for.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.format import format_count
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.batch_shape import BatchShape
from pretune.data.layout import lay_out
from pretune.data.mixing import SmoothedMixing, SourceMixture, WeightedMixing
from pretune.data.packing import pack
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.tasks.encode.items import Items

MAX_PACKED_ROW = 512
"""Rows of several items are at most so long …"""
DOUBLE_COST_LENGTH = 2048
"""… since attention costs more in them: twice as much per token, all told, in rows of this length."""
ROW_SAMPLE = 16
"""Batches that are packed to choose the length of rows, and …"""
SHAPE_SAMPLE = 128
"""… to find out how many of them are needed."""


class TaskStream:
    """Batches of so many items. With `fixed` they have one shape, and the few that need more have twice as many rows.

    `mixing` weighs the tasks of items that were `mixed`: SmoothedMixing(alpha=1/temperature) by their examples.
    """

    def __init__(
        self,
        items: Items,
        *,
        batch: int = 32,
        seed: int = 0,
        ranks: int = 1,
        fixed: bool = False,
        row: int | None = None,
        mixing: SmoothedMixing | WeightedMixing | None = None,
    ) -> None:
        if batch < 1 or ranks < 1 or batch % ranks:
            raise UsageError(
                f"a batch of {format_count(batch, 'examples')} is not divisible by {ranks} ranks; change its size"
            )
        self.items, self.size, self.seed, self.ranks, self.fixed, self.mixing = items, batch, seed, ranks, fixed, mixing
        self._row = row
        self._init_plan()

    def _init_plan(self) -> None:
        lengths, source = self.items.lengths
        self._lengths, self._source = lengths, source
        sources = self.items.sequences.sources
        number = np.zeros(len(self.items), dtype=np.int64)
        if sources is not None:
            number = sources[np.cumsum(self.items.sizes) - self.items.sizes]
        names = tuple(map(str, range(int(number.max()) + 1)))
        self._mixture = SourceMixture.from_samples(self.mixing, number, np.ones(len(number), dtype=np.int64), names)
        self._orders: dict[int, Ints] = {}
        self._shapes: dict[int, BatchShape] = {}
        self._row_length, self._source_length = self._choose_row_lengths()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("items", "size", "seed", "ranks", "fixed", "mixing", "_row")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._init_plan()

    def __getitem__(self, step: int) -> Batch:
        return self.batch(step)

    def steps(self, epoch: int) -> range:
        """The steps of an epoch."""
        each = -(-int(self._mixture.quotas.sum()) // self.size)
        return range(epoch * each, (epoch + 1) * each)

    def locate_step(self, step: int) -> tuple[int, int]:
        """The epoch a step is in, and its number inside it."""
        if step < 0:
            raise UsageError(f"step {step} must be 0 or more")
        return divmod(step, len(self.steps(0)))

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """The batch of a step, or one of several parts of its items: a rank's, a micro-batch's."""
        sequences, row, shape = self._lay_out(self._select_items(step, part, parts), parts)
        return lay_out(sequences, row, shape)

    def examples(self, step: int) -> list[int]:
        """The numbers of the examples that a step reads."""
        found = self.items.take(self._select_items(step)).samples
        return [] if found is None else list(dict.fromkeys(found.tolist()))

    @property
    def shape(self) -> BatchShape:
        """The shape of a whole batch."""
        return self.part(1)

    def part(self, parts: int = 1) -> BatchShape:
        """The shape of a batch, or of one of several parts of it; open in what is not fixed."""
        if parts not in self._shapes:
            self._shapes[parts] = self._measure(parts)
        return self._shapes[parts]

    def _select_items(self, step: int, part: int = 0, parts: int = 1) -> Ints:
        """The items of a step, or of a part of it."""
        if not 0 <= part < parts:
            raise UsageError(f"part {part} of {parts} does not exist")
        epoch, at = self.locate_step(step)
        if epoch not in self._orders:
            while len(self._orders) > 1:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = self._mixture.draw_order(self.seed, epoch).samples
        whole = self._orders[epoch][at * self.size : (at + 1) * self.size]
        return whole[len(whole) * part // parts : len(whole) * (part + 1) // parts]

    def _choose_row_lengths(self) -> tuple[int, int | None]:
        """The length of rows: that of the longest item, or a multiple which leaves less of them empty."""
        longest = _round_up(self._lengths.max())
        wide = None if self._source is None else _round_up(self._source.max())
        if self._row is not None and self._row < int(self._lengths.max()):
            raise UsageError(
                f"rows of {self._row} tokens cannot hold an item of {int(self._lengths.max())}; raise row or lower "
                "max_length"
            )
        if self._row is not None:
            return self._row, wide
        steps = self.steps(0)
        some = [self._select_items(step) for step in steps[:: max(len(steps) // ROW_SAMPLE, 1)]]

        def rooms(times: int) -> tuple[int, int | None]:
            if wide is None or self._source is None:
                return times * longest, None
            ratio = float(self._lengths.mean() / self._source.mean())  # the shorter side gets a little more than that
            return max(longest, _round_up(times * wide * ratio * (1.1 if ratio < 1 else 1))), times * wide

        def cost(times: int) -> float:
            room, other = rooms(times)
            size = room + (other or 0)
            needed = np.array([int(self._pack_rows(which, room, other)[1].max()) + 1 for which in some])
            rows = _compute_cost(needed, _choose_rows(needed)) if self.fixed else float(needed.sum())
            return rows * size * (1 + size / DOUBLE_COST_LENGTH)

        return rooms(min(range(1, max(MAX_PACKED_ROW // max(longest, wide or 0), 1) + 1), key=cost))

    def _pack_rows(self, items: Ints, row_length: int, source_length: int | None) -> tuple[Ints, Ints]:
        """Items row by row, and the row of each."""
        if not len(items):
            return items, items
        source = None if self._source is None else self._source[items]
        row = pack(self._lengths[items], row_length, source=source, source_room=source_length)
        order = np.argsort(row, kind="stable")
        return items[order], row[order]

    def _lay_out(self, items: Ints, parts: int) -> tuple[Sequences, Ints, BatchShape]:
        """The sequences of items, the row of each, and the shape they are laid out in."""
        placed, row = self._pack_rows(items, self._row_length, self._source_length)
        sequences, row = self.items.take(placed), np.repeat(row, self.items.sizes[placed])
        needed = int(row.max(initial=0)) + 1
        if not self.fixed:
            return sequences, row, BatchShape(rows=needed, length=self._row_length, source=self._source_length)
        shape, times = self.part(parts), 1
        targets = 0 if sequences.targets is None else int((sequences.targets != IGNORE_INDEX).sum())
        most = int(np.bincount(row).max(initial=0))
        assert shape.sequences is not None
        while (
            times * shape.rows < needed
            or times * shape.sequences < most
            or (shape.slots is not None and times * shape.rows * shape.slots < targets)
        ):
            times *= 2
        return sequences, row, replace(shape, rows=times * shape.rows, sequences=times * shape.sequences)

    def _measure(self, parts: int) -> BatchShape:
        """The rows, sequences and targets that batches need, from some of the first epoch's."""
        steps = self.steps(0)
        found: list[tuple[int, int, int]] = []
        for step in steps[:: max(len(steps) // SHAPE_SAMPLE, 1)]:
            placed, row = self._pack_rows(self._select_items(step, 0, parts), self._row_length, self._source_length)
            if len(row):
                cells = int(np.bincount(row, weights=self.items.sizes[placed]).max())
                targets = self.items.take(placed).targets
                learnt = 0 if targets is None else int((targets != IGNORE_INDEX).sum())
                found.append((int(row.max()) + 1, cells, learnt))
        needed = np.array(found or [(1, 1, 1)])
        if not self.fixed:
            return BatchShape(rows=int(needed[:, 0].max()), length=self._row_length, source=self._source_length)
        rows = _choose_rows(needed[:, 0])
        inside = needed[needed[:, 0] <= rows]
        slots = None
        if self.items.sequences.targets is not None:
            slots = max(-(-int(inside[:, 2].max() * 1.1) // rows), 1)
        cells = math.ceil(int(inside[:, 1].max()) * 1.25)
        return BatchShape(rows=rows, length=self._row_length, source=self._source_length, sequences=cells, slots=slots)


def _choose_rows(rows_needed: Ints) -> int:
    """The number of rows that is cheapest where a batch that needs more has twice as many, or four times."""
    return min(
        range(int(rows_needed.min()), int(rows_needed.max()) + 1),
        key=lambda rows: (_compute_cost(rows_needed, rows), -rows),
    )


def _compute_cost(rows_needed: Ints, rows: int) -> float:
    times = 2 ** np.ceil(np.log2(np.maximum(rows_needed / rows, 1)))
    return float((rows * times).sum())


def _round_up(length: float) -> int:
    """A length rounded up to what devices like."""
    return -(-math.ceil(length) // 8) * 8
