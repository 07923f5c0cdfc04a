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
from pretune.core.types import IGNORE, Batch
from pretune.data.batch_shape import Shape
from pretune.data.layout import lay_out
from pretune.data.mixing import Mixture, Smoothed, Weighted
from pretune.data.packing import pack
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.tasks.encode.items import Items

LONG = 512
"""Rows of several items are at most so long …"""
COSTLY = 2048
"""… since attention costs more in them: twice as much per token, all told, in rows of this length."""
WEIGHED = 16
"""Batches that are packed to choose the length of rows, and …"""
TRIED = 128
"""… to find out how many of them are needed."""


class TaskStream:
    """Batches of so many items. With `fixed` they have one shape, and the few that need more have twice as many rows.

    `mixing` weighs the tasks of items that were `mixed`: Smoothed(alpha=1/temperature) by their examples.
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
        mixing: Smoothed | Weighted | None = None,
    ) -> None:
        if batch < 1 or ranks < 1 or batch % ranks:
            raise UsageError(f"a batch of {batch} examples cannot be shared out to {ranks} ranks; change its size")
        self.items, self.size, self.seed, self.ranks, self.fixed, self.mixing = items, batch, seed, ranks, fixed, mixing
        self._row = row
        self._start()

    def _start(self) -> None:
        lengths, source = self.items.lengths
        self._lengths, self._source = lengths, source
        sources = self.items.sequences.sources
        number = np.zeros(len(self.items), dtype=np.int64)
        if sources is not None:
            number = sources[np.cumsum(self.items.sizes) - self.items.sizes]
        names = tuple(map(str, range(int(number.max()) + 1)))
        self._mixture = Mixture.of(self.mixing, number, np.ones(len(number), dtype=np.int64), names)
        self._orders: dict[int, Ints] = {}
        self._shapes: dict[int, Shape] = {}
        self._room, self._wide = self._rows()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("items", "size", "seed", "ranks", "fixed", "mixing", "_row")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __getitem__(self, step: int) -> Batch:
        return self.batch(step)

    def steps(self, epoch: int) -> range:
        """The steps of an epoch."""
        each = -(-int(self._mixture.quotas.sum()) // self.size)
        return range(epoch * each, (epoch + 1) * each)

    def where(self, step: int) -> tuple[int, int]:
        """The epoch a step is in, and its number inside it."""
        if step < 0:
            raise UsageError(f"step {step} must be 0 or more")
        return divmod(step, len(self.steps(0)))

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """The batch of a step, or one of several parts of its items: a rank's, a micro-batch's."""
        sequences, row, shape = self._laid(self._which(step, part, parts), parts)
        return lay_out(sequences, row, shape)

    def examples(self, step: int) -> list[int]:
        """The numbers of the examples that a step reads."""
        found = self.items.take(self._which(step)).samples
        return [] if found is None else list(dict.fromkeys(found.tolist()))

    @property
    def shape(self) -> Shape:
        """The shape of a whole batch."""
        return self.part(1)

    def part(self, parts: int = 1) -> Shape:
        """The shape of a batch, or of one of several parts of it; open in what is not fixed."""
        if parts not in self._shapes:
            self._shapes[parts] = self._measure(parts)
        return self._shapes[parts]

    def _which(self, step: int, part: int = 0, parts: int = 1) -> Ints:
        """The items of a step, or of a part of it."""
        if not 0 <= part < parts:
            raise UsageError(f"part {part} of {parts} does not exist")
        epoch, at = self.where(step)
        if epoch not in self._orders:
            while len(self._orders) > 1:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = self._mixture.draws(self.seed, epoch).samples
        whole = self._orders[epoch][at * self.size : (at + 1) * self.size]
        return whole[len(whole) * part // parts : len(whole) * (part + 1) // parts]

    def _rows(self) -> tuple[int, int | None]:
        """The length of rows: that of the longest item, or a multiple which leaves less of them empty."""
        longest = _up(self._lengths.max())
        wide = None if self._source is None else _up(self._source.max())
        if self._row is not None and self._row < int(self._lengths.max()):
            raise UsageError(
                f"rows of {self._row} tokens cannot hold an item of {int(self._lengths.max())}; raise row or lower "
                "max_length"
            )
        if self._row is not None:
            return self._row, wide
        steps = self.steps(0)
        some = [self._which(step) for step in steps[:: max(len(steps) // WEIGHED, 1)]]

        def rooms(times: int) -> tuple[int, int | None]:
            if wide is None or self._source is None:
                return times * longest, None
            ratio = float(self._lengths.mean() / self._source.mean())  # the shorter side gets a little more than that
            return max(longest, _up(times * wide * ratio * (1.1 if ratio < 1 else 1))), times * wide

        def cost(times: int) -> float:
            room, other = rooms(times)
            size = room + (other or 0)
            needed = np.array([int(self._packed(which, room, other)[1].max()) + 1 for which in some])
            rows = _cost(needed, _base(needed)) if self.fixed else float(needed.sum())
            return rows * size * (1 + size / COSTLY)

        return rooms(min(range(1, max(LONG // max(longest, wide or 0), 1) + 1), key=cost))

    def _packed(self, which: Ints, room: int, wide: int | None) -> tuple[Ints, Ints]:
        """Items row by row, and the row of each."""
        if not len(which):
            return which, which
        source = None if self._source is None else self._source[which]
        row = pack(self._lengths[which], room, source=source, source_room=wide)
        order = np.argsort(row, kind="stable")
        return which[order], row[order]

    def _laid(self, which: Ints, parts: int) -> tuple[Sequences, Ints, Shape]:
        """The sequences of items, the row of each, and the shape they are laid out in."""
        placed, row = self._packed(which, self._room, self._wide)
        sequences, row = self.items.take(placed), np.repeat(row, self.items.sizes[placed])
        needed = int(row.max(initial=0)) + 1
        if not self.fixed:
            return sequences, row, Shape(rows=needed, length=self._room, source=self._wide)
        shape, times = self.part(parts), 1
        targets = 0 if sequences.targets is None else int((sequences.targets != IGNORE).sum())
        most = int(np.bincount(row).max(initial=0))
        assert shape.sequences is not None
        while (
            times * shape.rows < needed
            or times * shape.sequences < most
            or (shape.slots is not None and times * shape.rows * shape.slots < targets)
        ):
            times *= 2
        return sequences, row, replace(shape, rows=times * shape.rows, sequences=times * shape.sequences)

    def _measure(self, parts: int) -> Shape:
        """The rows, sequences and targets that batches need, from some of the first epoch's."""
        steps = self.steps(0)
        found: list[tuple[int, int, int]] = []
        for step in steps[:: max(len(steps) // TRIED, 1)]:
            placed, row = self._packed(self._which(step, 0, parts), self._room, self._wide)
            if len(row):
                cells = int(np.bincount(row, weights=self.items.sizes[placed]).max())
                targets = self.items.take(placed).targets
                learnt = 0 if targets is None else int((targets != IGNORE).sum())
                found.append((int(row.max()) + 1, cells, learnt))
        needed = np.array(found or [(1, 1, 1)])
        if not self.fixed:
            return Shape(rows=int(needed[:, 0].max()), length=self._room, source=self._wide)
        rows = _base(needed[:, 0])
        inside = needed[needed[:, 0] <= rows]
        slots = None
        if self.items.sequences.targets is not None:
            slots = max(-(-int(inside[:, 2].max() * 1.1) // rows), 1)
        cells = math.ceil(int(inside[:, 1].max()) * 1.25)
        return Shape(rows=rows, length=self._room, source=self._wide, sequences=cells, slots=slots)


def _base(needed: Ints) -> int:
    """The number of rows that is cheapest where a batch that needs more has twice as many, or four times."""
    return min(range(int(needed.min()), int(needed.max()) + 1), key=lambda rows: (_cost(needed, rows), -rows))


def _cost(needed: Ints, rows: int) -> float:
    times = 2 ** np.ceil(np.log2(np.maximum(needed / rows, 1)))
    return float((rows * times).sum())


def _up(length: float) -> int:
    """A length rounded up to what devices like."""
    return -(-math.ceil(length) // 8) * 8
