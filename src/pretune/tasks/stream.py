"""Batches of a task: every item once per epoch, in an order that follows from the seed.

    stream = TaskStream(encoder.encode(examples), batch=32, seed=0)
    stream[1000]                                     # the batch of step 1000: random access, no state
    stream.batch(1000, part=1, parts=4)              # a quarter of its items: of a rank, of a micro-batch

A step has a fixed number of items, so a batch size means what it means in papers; they are packed into rows. A stream
is endless, as `training.dataloader` expects.

MultiTask tasks with a head each alternate (`MultiTaskStream`): every step belongs to one task, and small tasks may be
oversampled:

    model = adapt(base, MultiTask(tuple(build_head(task, base) for task in tasks)))
    stream = MultiTaskStream([TaskStream(…), TaskStream(…)], temperature=2.0, seed=0)
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import lay_out
from pretune.data.packing import pack
from pretune.data.plan import BatchShape
from pretune.data.sampling import Purpose, SmoothedMixing, SourceMixture, WeightedMixing, shuffle_by_key
from pretune.data.sequences import Ints, Sequences
from pretune.tasks.encoding import Items

MAX_PACKED_ROW = 512
"""Maximum length of rows with several items …"""
DOUBLE_COST_LENGTH = 2048
"""… because attention costs more in long rows: twice as much per token, in total, in rows of this length."""
ROW_SAMPLE = 16
"""Batches that are packed to choose the row length, and …"""
SHAPE_SAMPLE = 128
"""… to choose the number of rows."""


class TaskStream:
    """Batches of `batch` items. With `fixed_shape` all have one shape; the few that need more have twice as many rows.

    `mixing` weights the tasks of joined items (`mix_items`): SmoothedMixing(alpha=1/temperature) by their examples.
    """

    def __init__(
        self,
        items: Items,
        *,
        batch: int = 32,
        seed: int = 0,
        fixed_shape: bool = False,
        mixing: SmoothedMixing | WeightedMixing | None = None,
    ) -> None:
        if batch < 1:
            raise UsageError(f"a batch must have at least 1 example, got {batch}")
        self.items, self.size, self.seed, self.fixed_shape = items, batch, seed, fixed_shape
        self._lengths, self._source = items.lengths
        number = np.zeros(len(items), dtype=np.int64)
        if items.sequences.sources is not None:
            number = items.sequences.sources[np.cumsum(items.sizes) - items.sizes]
        names = tuple(map(str, range(int(number.max()) + 1)))
        self._mixture = SourceMixture.from_samples(mixing, number, np.ones(len(number), dtype=np.int64), names)
        self._orders: dict[int, Ints] = {}
        self._shapes: dict[int, BatchShape] = {}
        self._row_length, self._source_length = self._choose_row_lengths()

    def __getitem__(self, step: int) -> Batch:
        return self.batch(step)

    def steps(self, epoch: int) -> range:
        """Return the steps of an epoch."""
        steps_per_epoch = -(-int(self._mixture.quotas.sum()) // self.size)
        return range(epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch)

    def locate_step(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step, and its number in the epoch."""
        if step < 0:
            raise UsageError(f"step must be >= 0, got {step}")
        return divmod(step, len(self.steps(0)))

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """Return the batch of a step, or one of several parts of its items: of a rank, of a micro-batch."""
        sequences, row, shape = self._lay_out(self.select(step, part, parts), parts)
        return lay_out(sequences, row, shape)

    def examples(self, step: int) -> list[int]:
        """Return the numbers of the examples of a step."""
        samples = self.items.take(self.select(step)).samples
        return [] if samples is None else list(dict.fromkeys(samples.tolist()))

    @property
    def shape(self) -> BatchShape:
        """Shape of a full batch."""
        return self.get_shape(1)

    def get_shape(self, parts: int = 1) -> BatchShape:
        """Return the shape of a batch, or of one of several parts of it; None in the fields that vary."""
        if parts not in self._shapes:
            self._shapes[parts] = self._measure(parts)
        return self._shapes[parts]

    def select(self, step: int, part: int = 0, parts: int = 1) -> Ints:
        """Return the items of a step, or of a part of it."""
        if not 0 <= part < parts:
            raise UsageError(f"part must be from 0 to {parts - 1}, got {part}")
        epoch, position = self.locate_step(step)
        if epoch not in self._orders:
            while len(self._orders) > 1:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = self._mixture.draw_order(self.seed, epoch).samples
        items = self._orders[epoch][position * self.size : (position + 1) * self.size]
        return items[len(items) * part // parts : len(items) * (part + 1) // parts]

    def _choose_row_lengths(self) -> tuple[int, int | None]:
        """Return the row lengths: that of the longest item, or a multiple of it that wastes less space."""
        longest = _round_up(self._lengths.max())
        source_length = None if self._source is None else _round_up(self._source.max())
        steps = self.steps(0)
        sample = [self.select(step) for step in steps[:: max(len(steps) // ROW_SAMPLE, 1)]]

        def compute_lengths(times: int) -> tuple[int, int | None]:
            if source_length is None or self._source is None:
                return times * longest, None
            ratio = float(self._lengths.mean() / self._source.mean())  # the shorter side gets a little more than this
            length = _round_up(times * source_length * ratio * (1.1 if ratio < 1 else 1))
            return max(longest, length), times * source_length

        def estimate_cost(times: int) -> float:
            length, source_length = compute_lengths(times)
            size = length + (source_length or 0)
            last_rows = [self._pack_rows(items, length, source_length)[1].max() for items in sample]
            rows_needed = np.array(last_rows, dtype=np.int64) + 1
            fixed_rows = _choose_rows(rows_needed) if self.fixed_shape else None
            rows = float(rows_needed.sum()) if fixed_rows is None else _compute_cost(rows_needed, fixed_rows)
            return rows * size * (1 + size / DOUBLE_COST_LENGTH)

        max_times = max(MAX_PACKED_ROW // max(longest, source_length or 0), 1)
        return compute_lengths(min(range(1, max_times + 1), key=estimate_cost))

    def _pack_rows(self, items: Ints, row_length: int, source_length: int | None) -> tuple[Ints, Ints]:
        """Return the items row by row, and the row of each."""
        if not len(items):
            return items, items
        source = None if self._source is None else self._source[items]
        row = pack(self._lengths[items], row_length, source=source, source_room=source_length)
        order = np.argsort(row, kind="stable")
        return items[order], row[order]

    def _lay_out(self, items: Ints, parts: int) -> tuple[Sequences, Ints, BatchShape]:
        """Return the sequences of items, the row of each, and their shape."""
        order, row = self._pack_rows(items, self._row_length, self._source_length)
        sequences, row = self.items.take(order), np.repeat(row, self.items.sizes[order])
        rows_needed = int(row.max(initial=0)) + 1
        if not self.fixed_shape:
            return sequences, row, BatchShape(rows=rows_needed, length=self._row_length, source=self._source_length)
        shape, times = self.get_shape(parts), 1
        targets = 0 if sequences.targets is None else int((sequences.targets != IGNORE_INDEX).sum())
        max_sequences = int(np.bincount(row).max(initial=0))
        assert shape.sequences is not None
        while (
            times * shape.rows < rows_needed
            or times * shape.sequences < max_sequences
            or (shape.slots is not None and times * shape.rows * shape.slots < targets)
        ):
            times *= 2
        return sequences, row, replace(shape, rows=times * shape.rows, sequences=times * shape.sequences)

    def _measure(self, parts: int) -> BatchShape:
        """Measure the rows, sequences and targets that batches need, on a sample of the first epoch."""
        steps = self.steps(0)
        measurements: list[tuple[int, int, int]] = []
        for step in steps[:: max(len(steps) // SHAPE_SAMPLE, 1)]:
            order, row = self._pack_rows(self.select(step, 0, parts), self._row_length, self._source_length)
            if len(row):
                cells = int(np.bincount(row, weights=self.items.sizes[order]).max())
                targets = self.items.take(order).targets
                num_targets = 0 if targets is None else int((targets != IGNORE_INDEX).sum())
                measurements.append((int(row.max()) + 1, cells, num_targets))
        needs = np.array(measurements or [(1, 1, 1)])
        if not self.fixed_shape:
            return BatchShape(rows=int(needs[:, 0].max()), length=self._row_length, source=self._source_length)
        rows = _choose_rows(needs[:, 0])
        fitting = needs[needs[:, 0] <= rows]
        slots = None
        if self.items.sequences.targets is not None:
            slots = max(-(-int(fitting[:, 2].max() * 1.1) // rows), 1)
        cells = math.ceil(int(fitting[:, 1].max()) * 1.25)
        return BatchShape(rows=rows, length=self._row_length, source=self._source_length, sequences=cells, slots=slots)


def _choose_rows(rows_needed: Ints) -> int:
    """Return the cheapest number of rows, if a batch that needs more has two or four times as many."""
    return min(
        range(int(rows_needed.min()), int(rows_needed.max()) + 1),
        key=lambda rows: (_compute_cost(rows_needed, rows), -rows),
    )


def _compute_cost(rows_needed: Ints, rows: int) -> float:
    times = 2 ** np.ceil(np.log2(np.maximum(rows_needed / rows, 1)))
    return float((rows * times).sum())


def _round_up(length: float) -> int:
    """Round a length up to a multiple of 8, which GPUs need."""
    return -(-math.ceil(length) // 8) * 8


class MultiTaskStream:
    """Batches of several streams, each with its task number.

    A round has as many steps as one epoch of all tasks. The share of a task is its number of steps to the power of one
    over the temperature (Raffel et al., 2020, section 3.5.2): 1 is proportional to size; the higher, the more uniform.
    The order of a round follows from the seed; each task has its own epochs, so every example is used once per epoch
    of its task.
    """

    def __init__(self, streams: Sequence[TaskStream], *, temperature: float = 1.0, seed: int = 0) -> None:
        if not streams or not temperature >= 1:
            raise UsageError(f"multi-task training needs a stream and a temperature >= 1, got {temperature:g}")
        self.streams, self.seed = tuple(streams), seed
        sizes = np.array([len(stream.steps(0)) for stream in streams], dtype=np.float64)
        shares = SmoothedMixing(alpha=1 / temperature).compute_shares(sizes)
        self.quotas: Ints = np.maximum(np.rint(shares * sizes.sum()).astype(np.int64), 1)  # steps of each per round
        self._tasks = np.repeat(np.arange(len(self.streams)), self.quotas)
        self._rounds: dict[int, tuple[Ints, Ints]] = {}

    def __getitem__(self, step: int) -> Batch:
        return self.batch(step)

    def steps(self, epoch: int) -> range:
        """Return the steps of a round."""
        return range(epoch * len(self._tasks), (epoch + 1) * len(self._tasks))

    def locate_step(self, step: int) -> tuple[int, int]:
        """Return the task of a step, and the step of that task's stream."""
        if step < 0:
            raise UsageError(f"step must be >= 0, got {step}")
        round_number, position = divmod(step, len(self._tasks))
        if round_number not in self._rounds:
            while len(self._rounds) > 1:
                del self._rounds[next(iter(self._rounds))]
            order = self._tasks[shuffle_by_key(self.seed, Purpose.ROUND, round_number, np.arange(len(self._tasks)))]
            occurrence = np.empty_like(order)  # how often the task has occurred in the round before this step
            for number, quota in enumerate(self.quotas):
                occurrence[order == number] = np.arange(quota)
            self._rounds[round_number] = order, occurrence
        order, occurrence = self._rounds[round_number]
        number = int(order[position])
        return number, round_number * int(self.quotas[number]) + int(occurrence[position])

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """Return the batch of a step, or a part of it."""
        number, task_step = self.locate_step(step)
        return replace(self.streams[number].batch(task_step, part=part, parts=parts), task=number)

    @property
    def shape(self) -> BatchShape:
        """Largest shape of all tasks."""
        shapes = [stream.shape for stream in self.streams]
        return max(shapes, key=lambda shape: shape.rows * (shape.length + (shape.source or 0)))
