"""Data workers seen from the loop's process: how one is started, asked, heard, and ended.

Each has a pipe of its own and answers in the order it was asked. A fault in making a step is an answer like any other,
told when that step's turn comes: the same one for any number of workers. A worker that was killed is noticed by the end
of its pipe, or by its own.
"""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle

from torch import Tensor

from pretune.core.errors import ResourceError, UsageError
from pretune.core.remote_error import RemoteError
from pretune.training.batch_buffer import BufferLayout
from pretune.training.batch_stats import BatchStats
from pretune.training.data_worker import SIGNALS, BatchRequest, BatchSource, FilledSlot, WorkerReply, map_memory, serve

_EXIT_TIMEOUT = 2.0  # seconds a worker has to end by itself
_WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
"""The environment of a worker: one thread each."""


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """A step that lies in a worker's memory."""

    layout: BufferLayout
    stats: BatchStats
    memory: Tensor  # flat uint8, good until the slot is asked for again


class Worker:
    """One process."""

    def __init__(self, source: BatchSource, slots: int, name: str) -> None:
        context = _build_context(type(source).__module__)
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, os.getpid(), source, slots)
        self.process = context.Process(target=serve, args=arguments, name=name, daemon=True)
        self._memory: list[Tensor | None] = [None] * slots
        self._layout: BufferLayout | None = None
        try:
            with _block_signals():
                self.process.start()
        except OSError as error:
            raise ResourceError(f"cannot start a data worker: {error.strerror}; lower train.workers") from error
        except Exception as error:
            what = f"{type(source).__name__} cannot be sent to a data worker ({str(error).splitlines()[0]})"
            raise UsageError(f"{what}; define its parts at the top of a module, or set train.workers=0") from error
        finally:
            theirs.close()

    def send_request(self, request: BatchRequest) -> None:
        """Have a step made. That a worker is dead is told by `receive_step`."""
        with contextlib.suppress(OSError):
            self.pipe.send(request)

    def receive_step(self, turn: int) -> WorkerStep | RemoteError:
        """The next answer of a turn."""
        while True:
            try:
                if self.pipe not in wait([self.pipe, self.process.sentinel]):
                    return self._build_death_error()
                asked, found = self._receive_reply()
            except (EOFError, OSError):
                return self._build_death_error()
            if asked == turn:
                return found

    def _receive_reply(self) -> tuple[int, WorkerStep | RemoteError]:
        answer: WorkerReply = self.pipe.recv()
        asked, found = answer
        if isinstance(found, RemoteError):
            return asked, found
        return asked, self._read_slot(found)

    def _read_slot(self, slot: FilledSlot) -> WorkerStep:
        self._layout = slot.layout or self._layout
        if slot.new_size:
            self._memory[slot.slot] = map_memory(recv_handle(self.pipe), slot.new_size)
        memory, form = self._memory[slot.slot], self._layout
        assert memory is not None and form is not None
        return WorkerStep(form, slot.stats, memory[: form.size])

    def _build_death_error(self) -> RemoteError:
        self.process.join(_EXIT_TIMEOUT)
        code = self.process.exitcode
        why, hint = f"exit code {code}", "lower train.workers"
        if code is not None and code < 0:
            why = f"signal {signal.Signals(-code).name}{', perhaps for want of memory' if code == -9 else ''}"
        elif code == 1:  # it could not import the script it was started by
            hint = "put the call under `if __name__ == '__main__':`, or set train.workers=0"
        return RemoteError(ResourceError, f"a data worker died ({why}); {hint}")


def stop_workers(workers: Sequence[Worker]) -> None:
    """End processes: by closing their pipes, and by force where that does not do."""
    for worker in workers:
        worker.pipe.close()
    for worker in workers:
        worker.process.join(_EXIT_TIMEOUT)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()


def start_forkserver(*modules: str) -> None:
    """Start what workers are forked from, so that it imports torch and these modules while we do something else."""
    _build_context(*modules)
    with contextlib.suppress(OSError), _block_signals():  # the first worker will tell
        forkserver.ensure_running()


def _build_context(*modules: str) -> multiprocessing.context.ForkServerContext:
    # NOTE: not forks of ours, which has a GPU and threads. A process that has nothing but modules is forked instead:
    # they are imported once for all workers, which share their pages.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", serve.__module__, *modules])
    return context


@contextlib.contextmanager
def _block_signals() -> Iterator[None]:
    """While a process starts: signals wait, for it and for us, and it is told to use one thread.

    The process that is forked, where it is started now, has these signals held back for good.
    """
    resource_tracker.ensure_running()  # NOTE: before, for it would let signals through when it starts
    before = {name: os.environ.get(name) for name in _WORKER_ENVIRONMENT}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.environ.update(_WORKER_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
