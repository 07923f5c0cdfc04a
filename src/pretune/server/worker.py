"""Worker of a model: one thread that batches the requests of all clients.

Completions run by continuous batching. Other work (embeddings, predictions, …) is cut into chunks of texts; a chunk
holds texts of all waiting requests of the same kind, and runs as one ragged batch between two decoding steps.
"""

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pretune.core import log
from pretune.core.errors import PretuneError
from pretune.server.capabilities import Capability, Completer
from pretune.server.completion import CompletionJob
from pretune.server.config import ServerConfig
from pretune.server.continuous import ContinuousDecoder, DecodingRow
from pretune.server.errors import SHUT_DOWN, ModelError, QueueFullError, UnavailableError
from pretune.server.metrics import Metrics
from pretune.server.served_model import ServedModel


@dataclass(slots=True, eq=False)
class BatchJob:
    """Request of a capability's work on items (texts, queries, …), and the future of its results."""

    kind: str  # as metrics name it
    capability: Capability
    items: Sequence[Any]
    work: "functools.partial[list[Any]]"  # method of the capability with options; equal ones share batches
    chunk_size: int = 1  # items that run as one batch
    future: "Future[list[Any]]" = field(default_factory=Future)
    results: list[Any] = field(default_factory=list)

    @property
    def key(self) -> Hashable:
        """The method and its options."""
        return self.work.func, tuple(sorted(self.work.keywords.items()))

    def run(self, items: Sequence[Any]) -> list[Any]:
        """Return the results of the work on items of this job, and of others with equal work."""
        return self.work(self.capability, items)


Job = CompletionJob | BatchJob


class ModelWorker:
    """Queue and thread of a served model."""

    def __init__(self, model: ServedModel, config: ServerConfig, metrics: Metrics) -> None:
        self.model, self.config, self.metrics = model, config, metrics
        self._condition = threading.Condition()
        self._jobs: deque[BatchJob] = deque()
        self._waiting: deque[DecodingRow] = deque()
        self._owners: dict[DecodingRow, CompletionJob] = {}
        self._starting: set[CompletionJob] = set()  # jobs none of whose rows has started
        self._decoder: ContinuousDecoder | None = None
        if model.can(Completer):
            complete = model.get(Completer)
            self._decoder = ContinuousDecoder(complete.decoder, complete.tokens)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"model {model.name}", daemon=True)
        self._thread.start()

    @property
    def queue_length(self) -> int:
        """Number of requests that wait."""
        return len(self._jobs) + len(self._starting)

    @property
    def running_rows(self) -> int:
        """Number of texts that are being generated."""
        return 0 if self._decoder is None else len(self._decoder.rows)

    def submit(self, job: Job) -> None:
        """Add a request to the queue. Raises QueueFullError, or UnavailableError while stopping."""
        with self._condition:
            self.check_queue()
            if isinstance(job, BatchJob):
                self._jobs.append(job)
            else:
                self._starting.add(job)
                self._waiting.extend(job.rows)
                self._owners |= dict.fromkeys(job.rows, job)
            self._condition.notify()

    def check_queue(self) -> None:
        """Raise the error that `submit` would raise."""
        if self._is_stopping:
            raise UnavailableError("the server is shutting down; send the request to another one")
        if self.queue_length >= self.config.max_queue:
            raise QueueFullError(f"{self.queue_length} requests wait for model '{self.model.name}'; try again later")

    def stop(self) -> None:
        """Refuse new requests; the thread ends after the last one."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread; returns whether it has ended. Requests that are left fail."""
        self._thread.join(seconds)
        is_done = not self._thread.is_alive()
        error = UnavailableError(SHUT_DOWN)
        for job in () if is_done else self._list_jobs():
            _resolve(job.future, error=error)
        return is_done

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._jobs or self._owners or self._is_stopping):
                    self._condition.wait()
                if self._is_stopping and not (self._jobs or self._owners):
                    return
            try:
                self._run_chunk()
                if self._decoder is not None:
                    self._drop_cancelled(self._decoder)
                    self._admit(self._decoder)
                    self._step(self._decoder)
            except Exception as error:  # a bug of the worker itself must not end it
                log.warn(f"model '{self.model.name}': {type(error).__name__}: {error}")
                self._fail_all(error)

    def _run_chunk(self) -> None:
        """Run a chunk of items of the waiting jobs that are like the first; unfinished jobs move to the end."""
        with self._condition:
            self._jobs = deque(job for job in self._jobs if not job.future.cancelled())
            if not self._jobs:
                return
            first = self._jobs[0]
            room, parts = first.chunk_size, list[tuple[BatchJob, Sequence[Any]]]()
            for job in [job for job in self._jobs if job.key == first.key]:
                if room <= 0:
                    break
                part = job.items[len(job.results) : len(job.results) + room]
                parts.append((job, part))
                room -= len(part)
        start = time.monotonic()
        try:
            results = iter(first.run([item for _, part in parts for item in part]))
            for job, part in parts:
                job.results += islice(results, len(part))
        except Exception as error:
            for job, part in parts:  # by itself every job succeeds or fails alone
                try:
                    if len(parts) == 1:
                        raise error
                    job.results += job.run(part)
                except Exception as own_error:
                    self._fail(job, own_error)
        self.metrics.observe_batch(self.model.name, first.kind, sum(len(part) for _, part in parts), start)
        with self._condition:
            for job, _ in parts:
                if job in self._jobs:
                    self._jobs.remove(job)
                    if len(job.results) < len(job.items) and not job.future.done():
                        self._jobs.append(job)
        for job, _ in parts:
            if len(job.results) == len(job.items):
                _resolve(job.future, job.results)

    def _drop_cancelled(self, decoder: ContinuousDecoder) -> None:
        """Remove the rows of requests that were cancelled or have failed."""
        with self._condition:
            jobs = {job for job in self._owners.values() if job.future.done()}
            for job in jobs:
                self._starting.discard(job)
                for row in job.rows:
                    self._owners.pop(row, None)
            if jobs:
                self._waiting = deque(row for row in self._waiting if row in self._owners)
        decoder.remove([row for row in decoder.rows if row not in self._owners])

    def _admit(self, decoder: ContinuousDecoder) -> None:
        """Prefill waiting rows, as many as there is room for."""
        with self._condition:
            rows = self._select_rows(decoder)
            for row in rows:
                self._starting.discard(self._owners[row])
        if not rows:
            return
        try:
            decoder.admit(rows)
            self.metrics.count_tokens(self.model.name, "prompt", sum(len(row.source or row.prompt) for row in rows))
        except Exception as error:
            self._isolate(rows, error, decoder)
            return
        self._handle_tokens(rows, decoder)

    def _select_rows(self, decoder: ContinuousDecoder) -> list[DecodingRow]:
        rows: list[DecodingRow] = []
        tokens = 0
        if any(row.is_isolated for row in decoder.rows):
            return rows
        while self._waiting and len(decoder.rows) + len(rows) < self.config.max_rows:
            row = self._waiting[0]
            size = len(row.prompt) + len(row.tokens) + len(row.source or ())
            if row.is_isolated and (rows or decoder.rows):
                break
            if rows and tokens + size > self.config.max_prefill:
                break
            rows.append(self._waiting.popleft())
            tokens += size
            if row.is_isolated:
                break
        return rows

    def _step(self, decoder: ContinuousDecoder) -> None:
        """Append a token to every running text."""
        if not decoder.rows:
            return
        rows, start = [*decoder.rows], time.monotonic()
        try:
            decoder.step()
        except Exception as error:
            self._isolate(rows, error, decoder)
            return
        self.metrics.observe_batch(self.model.name, "complete", len(rows), start)
        self._handle_tokens(rows, decoder)

    def _handle_tokens(self, rows: Sequence[DecodingRow], decoder: ContinuousDecoder) -> None:
        """Send new text, remove the rows that have ended, and resolve requests all of whose texts have ended."""
        self.metrics.count_tokens(self.model.name, "generated", len(rows))
        for row in rows:
            job = self._owners[row]
            try:
                if row.error is not None:
                    raise row.error
                job.update(row)
            except Exception as error:
                self._fail(job, error)
        ended_rows = {row for row in rows if row.is_finished}
        decoder.remove(ended_rows)
        with self._condition:
            jobs = {self._owners.pop(row) for row in ended_rows}
        for job in jobs:
            if job.is_finished and not job.future.done():
                _resolve(job.future, job.build_result())

    def _isolate(self, rows: Sequence[DecodingRow], error: Exception, decoder: ContinuousDecoder) -> None:
        """Queue the rows of a failed batch again, each to run without others; the request of a single row fails."""
        decoder.remove(rows)
        if len(rows) == 1:
            self._fail(self._owners[rows[0]], error)
            return
        for row in rows:
            row.is_isolated = True
        with self._condition:
            self._waiting.extendleft(reversed(rows))

    def _list_jobs(self) -> list[Job]:
        return [*self._jobs, *set(self._owners.values())]

    def _fail(self, job: Job, error: Exception) -> None:
        if not isinstance(error, PretuneError):
            log.warn(f"model '{self.model.name}': {type(error).__name__}: {error}")
            error = ModelError(f"model '{self.model.name}' failed: {type(error).__name__}")
        self.metrics.count_error(self.model.name)
        _resolve(job.future, error=error)

    def _fail_all(self, error: Exception) -> None:
        """Fail every request of the queue, after an error that belongs to none of them."""
        with self._condition:
            jobs = self._list_jobs()
            self._jobs.clear()
            self._waiting.clear()
            self._owners.clear()
            self._starting.clear()
        if self._decoder is not None:
            self._decoder.remove(self._decoder.rows)
        for job in jobs:
            self._fail(job, error)


def _resolve(future: "Future[Any]", result: Any = None, error: Exception | None = None) -> None:
    """Set the result or the error of a future, unless it was cancelled."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
