"""Batches ahead of the loop: made by other processes, carried to the device a step before they are needed.

    with Feed(stream, start=state.step, micro=4, workers=3, device="cuda") as feed:
        for micro_batches in feed: ...

The batches of a step are a function of the step, and worker w of W makes every W-th step: what is given, and in which
order, does not depend on timing or on the number of workers.
"""

import multiprocessing
import time
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Self

import torch

from pretune.core.errors import UsageError
from pretune.core.remote_error import Fault
from pretune.core.types import Batch
from pretune.training.batch_stats import Tally
from pretune.training.data_worker import Request, Source
from pretune.training.device_prefetch import Load, carrier
from pretune.training.worker_process import Made, Worker, end

_NAME = "pretune-data-{}"


class Feed:
    """The micro-batches of one step after another, on a device: those of one rank of several.

    A step's rows are cut into `world` x `micro` equal parts, and rank r gets `micro` of them. Workers are processes;
    with none, batches are made when they are asked for, or for a GPU one step before. Each worker is up to `ahead`
    steps ahead.

    `waited` counts the seconds the loop spent in waiting for batches; `seen` tells what the last step was made of.
    """

    def __init__(
        self,
        source: Source,
        *,
        start: int = 0,
        stop: int | None = None,
        micro: int = 1,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        device: torch.device | str = "cpu",
        ahead: int = 4,
    ) -> None:
        if min(micro, world, ahead) < 1 or not 0 <= rank < world or workers < 0:
            raise UsageError(
                f"a feed needs micro, world and ahead of at least 1, rank below world, and 0 or more workers; found "
                f"micro={micro}, world={world}, ahead={ahead}, rank={rank}, workers={workers}"
            )
        self.step = start  # the next to be given
        self.waited, self.seen = 0.0, Tally()
        self._source, self._stop, self._rank, self._world, self._ahead = source, stop, rank, world, ahead
        self._micro, self._turn, self._base, self._last = micro, 0, start, start
        self._carrier = carrier(torch.device(device))
        self._coming: Future[Load | Fault] | None = None  # the next step, where it is on its way already
        if multiprocessing.current_process().daemon:  # a daemon may have no children
            workers = 0
        self._workers: list[Worker] = []
        # NOTE: runs before multiprocessing joins its children at exit, for it would wait for ours for ever.
        self._end = Finalize(self, end, args=(self._workers,), exitpriority=10)
        for number in range(workers):
            self._workers.append(Worker(source, ahead, _NAME.format(number)))
        # NOTE: a thread: to make a step or copy it to pinned memory takes time in which the loop can start kernels.
        self._hand = ThreadPoolExecutor(1, _NAME) if self._carrier.early else None
        self._begin()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Batch]:
        if not self._end.still_active():
            raise UsageError("this feed is closed; open another one")
        if self._stop is not None and self.step >= self._stop:
            raise StopIteration
        begun = time.monotonic()
        load = self._coming.result() if self._coming else self._fetch(self.step)
        self._coming = None
        if isinstance(load, Fault):
            self.close()
            load.throw()
        batches, self.seen = load.land(), load.tally
        self._last, self.step = self.step, self.step + 1
        if self._hand is not None and (self._stop is None or self.step < self._stop):
            self._coming = self._hand.submit(self._fetch, self.step)
        self.waited += time.monotonic() - begun
        return batches

    def split(self, micro: int) -> None:
        """Give the step that was given last once more, and go on from there, in so many micro-batches."""
        self._settle()
        self._micro, self._turn = micro, self._turn + 1
        self.step = self._base = self._last
        self._begin()

    def close(self) -> None:
        """End the workers; no process is left."""
        self._settle()
        self._end()
        if self._hand is not None:
            self._hand.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _settle(self) -> None:
        """Wait for the step that is on its way, and forget it."""
        if self._coming is not None:
            self._coming.exception()  # waits; what went wrong with a step that nobody asked for is nothing to tell
        self._coming = None

    def _begin(self) -> None:
        """Ask every worker for its first steps."""
        for step in range(self._base, self._base + len(self._workers) * self._ahead):
            self._ask(step)

    def _request(self, step: int) -> Request:
        first = self._rank * self._micro
        slot = (step - self._base) // max(len(self._workers), 1) % self._ahead
        parts = self._world * self._micro
        return Request(turn=self._turn, step=step, slot=slot, first=first, last=first + self._micro, parts=parts)

    def _ask(self, step: int) -> None:
        if self._stop is None or step < self._stop:
            self._worker(step).ask(self._request(step))

    def _worker(self, step: int) -> Worker:
        return self._workers[(step - self._base) % len(self._workers)]

    def _fetch(self, step: int) -> Load | Fault:
        """A step on its way to the device; its worker may go on at once."""
        if not self._workers:
            return self._carrier.bring(self._request(step).make(self._source))
        found = self._worker(step).take(self._turn)
        if not isinstance(found, Made):
            return found
        load = self._carrier.carry(found.form, found.tally, lambda memory: memory.copy_(found.memory))
        self._ask(step + len(self._workers) * self._ahead)
        return load
