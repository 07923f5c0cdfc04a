"""Multi-task batches: every step belongs to one task, and small tasks may be oversampled.

    model = adapt(base, MultiTask(tuple(build_head(task, base) for task in tasks)))
    stream = MultiTaskStream([TaskStream(…), TaskStream(…)], temperature=2.0, seed=0)

A round has as many steps as one epoch of all tasks. The share of a task is its number of steps to the power of one over
the temperature (Raffel et al., 2020, section 3.5.2): 1 is proportional to size; the higher, the more uniform. The order
of a round follows from the seed; each task has its own epochs, so every example is used once per epoch of its task.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.data.counters import Purpose, shuffle_by_key
from pretune.data.mixing import SmoothedMixing
from pretune.data.plan import BatchShape
from pretune.data.sequences import Ints
from pretune.tasks.encode.stream import TaskStream


class MultiTaskStream:
    """Batches of several streams, each with its task number."""

    def __init__(self, streams: Sequence[TaskStream], *, temperature: float = 1.0, seed: int = 0) -> None:
        if not streams or not temperature >= 1:
            raise UsageError(f"multi-task training needs a stream and a temperature >= 1, got {temperature:g}")
        self.streams, self.temperature, self.seed = tuple(streams), temperature, seed
        self._init_rounds()

    def _init_rounds(self) -> None:
        sizes = np.array([len(stream.steps(0)) for stream in self.streams], dtype=np.float64)
        shares = SmoothedMixing(alpha=1 / self.temperature).compute_shares(sizes)
        self.quotas: Ints = np.maximum(np.rint(shares * sizes.sum()).astype(np.int64), 1)  # steps of each per round
        self._tasks = np.repeat(np.arange(len(self.streams)), self.quotas)
        self._rounds: dict[int, tuple[Ints, Ints]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("streams", "temperature", "seed")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._init_rounds()

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
