"""Data loader: batches made by worker processes and copied to the device one step ahead of the loop.

    with DataLoader(stream, start=state.step, micro=4, workers=3, device="cuda") as dataloader:
        for micro_batches in dataloader: ...

The batches of a step are a function of the step, and worker w of W makes every W-th step: the batches and their order
do not depend on timing or on the number of workers.
"""

import multiprocessing
import time
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.util import Finalize
from typing import Self

import torch

from pretune.core.errors import RemoteError, UsageError
from pretune.core.types import Batch
from pretune.training.batch_transfer import BatchRequest, BatchSource, BatchStats, DevicePrefetcher, Transfer
from pretune.training.data_worker import Worker, WorkerStep, stop_workers

_WORKER_NAME = "pretune-data-{}"


class DataLoader:
    """Iterator over the micro-batches of successive steps, on a device, for one rank.

    Step `offset` of the run is step 0 of the source. The rows of a step are split into `world` x `micro` equal parts,
    and rank r gets `micro` of them. Workers are processes; without workers, batches are made on demand, or for a GPU
    one step ahead, unless `looks_ahead` is False. Each worker makes up to `prefetch_factor` steps ahead.

    `wait_seconds` counts the seconds the loop waited for batches; `stats` are the token counts of the last step.
    """

    def __init__(
        self,
        source: BatchSource,
        *,
        offset: int = 0,
        start: int = 0,
        stop: int | None = None,
        micro: int = 1,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        device: torch.device | str = "cpu",
        prefetch_factor: int = 4,
        looks_ahead: bool = True,
    ) -> None:
        if min(micro, world, prefetch_factor) < 1 or not 0 <= rank < world or workers < 0:
            raise UsageError(
                "DataLoader needs micro, world and prefetch_factor >= 1, 0 <= rank < world, and workers >= 0; got "
                f"micro={micro}, world={world}, prefetch_factor={prefetch_factor}, rank={rank}, workers={workers}"
            )
        self.step = start  # the next step
        self.wait_seconds, self.stats = 0.0, BatchStats()
        self._source, self._offset, self._stop = source, offset, stop
        self._rank, self._world, self._prefetch_factor = rank, world, prefetch_factor
        self._micro, self._turn, self._first_step, self._last_step = micro, 0, start, start
        self._prefetcher = DevicePrefetcher(torch.device(device))
        self._next_transfer: Future[Transfer | RemoteError] | None = None  # prefetch of the next step
        if multiprocessing.current_process().daemon:  # a daemon may have no children
            workers = 0
        self._workers: list[Worker] = []
        # NOTE: runs before multiprocessing joins its children at exit, which would wait for ours forever.
        self._stop_workers = Finalize(self, stop_workers, args=(self._workers,), exitpriority=10)
        for number in range(workers):
            self._workers.append(Worker(source, prefetch_factor, _WORKER_NAME.format(number)))
        # NOTE: a thread, so that making a step and copying it to pinned memory overlaps with kernel launches.
        is_async = self._prefetcher.is_async and looks_ahead
        self._executor = ThreadPoolExecutor(1, _WORKER_NAME) if is_async else None
        self._request_first_steps()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Batch]:
        if not self._stop_workers.still_active():
            raise UsageError("this data loader is closed; create a new one")
        if self._stop is not None and self.step >= self._stop:
            raise StopIteration
        start_time = time.monotonic()
        transfer = self._next_transfer.result() if self._next_transfer else self._fetch(self.step)
        self._next_transfer = None
        if isinstance(transfer, RemoteError):
            self.close()
            transfer.throw()
        batches, self.stats = transfer.result(), transfer.stats
        self._last_step, self.step = self.step, self.step + 1
        if self._executor is not None and (self._stop is None or self.step < self._stop):
            self._next_transfer = self._executor.submit(self._fetch, self.step)
        self.wait_seconds += time.monotonic() - start_time
        return batches

    def split(self, micro: int) -> None:
        """Repeat the last returned step and continue from there, with `micro` micro-batches per step."""
        self._discard_pending()
        self._micro, self._turn = micro, self._turn + 1
        self.step = self._first_step = self._last_step
        self._request_first_steps()

    def close(self) -> None:
        """Stop all worker processes."""
        self._discard_pending()
        self._stop_workers()
        if self._executor is not None:
            self._executor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _discard_pending(self) -> None:
        """Wait for the prefetched step, and discard it."""
        if self._next_transfer is not None:
            self._next_transfer.exception()  # waits; errors of a discarded step are ignored
        self._next_transfer = None

    def _request_first_steps(self) -> None:
        """Request the first steps of every worker."""
        for step in range(self._first_step, self._first_step + len(self._workers) * self._prefetch_factor):
            self._request_step(step)

    def _build_request(self, step: int) -> BatchRequest:
        first = self._rank * self._micro
        slot = (step - self._first_step) // max(len(self._workers), 1) % self._prefetch_factor
        parts = self._world * self._micro
        return BatchRequest(
            turn=self._turn,
            step=step - self._offset,
            slot=slot,
            start_part=first,
            stop_part=first + self._micro,
            parts=parts,
        )

    def _request_step(self, step: int) -> None:
        if self._stop is None or step < self._stop:
            self._select_worker(step).send_request(self._build_request(step))

    def _select_worker(self, step: int) -> Worker:
        return self._workers[(step - self._first_step) % len(self._workers)]

    def _fetch(self, step: int) -> Transfer | RemoteError:
        """Start the transfer of a step to the device, and request the worker's next step."""
        if not self._workers:
            return self._prefetcher.send(self._build_request(step).make(self._source))
        worker_step = self._select_worker(step).receive_step(self._turn)
        if not isinstance(worker_step, WorkerStep):
            return worker_step
        transfer = self._prefetcher.send_packed(
            worker_step.layout, worker_step.stats, lambda memory: memory.copy_(worker_step.memory)
        )
        self._request_step(step + len(self._workers) * self._prefetch_factor)
        return transfer
