"""Several tasks in turn: every step is of one of them, and small ones may come more often than their size says.

    model = adapt(base, Several(tuple(head_of(task, base) for task in tasks)))
    stream = Alternating([TaskStream(…), TaskStream(…)], temperature=2.0, seed=0)

A round has as many steps as one epoch of all tasks. The share of a task is its number of steps to the power of one over
the temperature (Raffel et al., 2020, section 3.5.2): 1 is by size, and the larger, the more alike are all. Their order
in a round follows from the seed; each task goes through its own epochs, so that nothing is read twice before all is.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.data.batch_shape import BatchShape
from pretune.data.counters import Purpose, shuffle_by_key
from pretune.data.mixing import SmoothedMixing
from pretune.data.ragged import Ints
from pretune.tasks.encode.stream import TaskStream


class MultiTaskStream:
    """Batches of several streams, each with the number of its task."""

    def __init__(self, streams: Sequence[TaskStream], *, temperature: float = 1.0, seed: int = 0) -> None:
        if not streams or not temperature >= 1:
            raise UsageError(f"tasks in turn need a stream and a temperature of at least 1, found {temperature:g}")
        self.streams, self.temperature, self.seed = tuple(streams), temperature, seed
        self._init_rounds()

    def _init_rounds(self) -> None:
        sizes = np.array([len(stream.steps(0)) for stream in self.streams], dtype=np.float64)
        shares = SmoothedMixing(alpha=1 / self.temperature).compute_shares(sizes)
        self.quotas: Ints = np.maximum(np.rint(shares * sizes.sum()).astype(np.int64), 1)  # steps of each in a round
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
        """The steps of a round."""
        return range(epoch * len(self._tasks), (epoch + 1) * len(self._tasks))

    def locate_step(self, step: int) -> tuple[int, int]:
        """The task of a step, and the step of its own stream."""
        if step < 0:
            raise UsageError(f"step {step} must be 0 or more")
        turns, at = divmod(step, len(self._tasks))
        if turns not in self._rounds:
            while len(self._rounds) > 1:
                del self._rounds[next(iter(self._rounds))]
            order = self._tasks[shuffle_by_key(self.seed, Purpose.ROUND, turns, np.arange(len(self._tasks)))]
            turn = np.empty_like(order)  # for the how-manieth time its task comes in the round
            for number, quota in enumerate(self.quotas):
                turn[order == number] = np.arange(quota)
            self._rounds[turns] = order, turn
        order, turn = self._rounds[turns]
        number = int(order[at])
        return number, turns * int(self.quotas[number]) + int(turn[at])

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """The batch of a step, or a part of it."""
        number, own = self.locate_step(step)
        return replace(self.streams[number].batch(own, part=part, parts=parts), task=number)

    @property
    def shape(self) -> BatchShape:
        """The largest shape of all tasks."""
        shapes = [stream.shape for stream in self.streams]
        return max(shapes, key=lambda shape: shape.rows * (shape.length + (shape.source or 0)))
