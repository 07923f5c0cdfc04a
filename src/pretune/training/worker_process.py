"""Data workers as seen from the training process: start, request, receive, stop.

Each worker has its own pipe and replies in request order. An error in making a step is a reply like any other, raised
when the step is due: the same error for any number of workers. A killed worker is noticed by the end of its pipe or by
its process sentinel.
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

_EXIT_TIMEOUT = 2.0  # seconds before a worker is killed
_WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment of a worker: one thread."""


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """Step in the shared memory of a worker."""

    layout: BufferLayout
    stats: BatchStats
    memory: Tensor  # flat uint8, valid until the slot is requested again


class Worker:
    """A worker process and its pipe."""

    def __init__(self, source: BatchSource, slots: int, name: str) -> None:
        context = _build_context(type(source).__module__)
        self.pipe: Connection
        self.pipe, child_pipe = context.Pipe()
        arguments = (child_pipe, os.getpid(), source, slots)
        self.process = context.Process(target=serve, args=arguments, name=name, daemon=True)
        self._memory: list[Tensor | None] = [None] * slots
        self._layout: BufferLayout | None = None
        try:
            with _block_signals():
                self.process.start()
        except OSError as error:
            raise ResourceError(f"cannot start a data worker: {error.strerror}; lower train.workers") from error
        except Exception as error:
            problem = f"{type(source).__name__} cannot be sent to a data worker ({str(error).splitlines()[0]})"
            raise UsageError(f"{problem}; define its parts at the top of a module, or set train.workers=0") from error
        finally:
            child_pipe.close()

    def send_request(self, request: BatchRequest) -> None:
        """Request a step. A dead worker is reported by `receive_step`."""
        with contextlib.suppress(OSError):
            self.pipe.send(request)

    def receive_step(self, turn: int) -> WorkerStep | RemoteError:
        """Return the next reply of a turn."""
        while True:
            try:
                if self.pipe not in wait([self.pipe, self.process.sentinel]):
                    return self._build_death_error()
                reply_turn, step = self._receive_reply()
            except (EOFError, OSError):
                return self._build_death_error()
            if reply_turn == turn:
                return step

    def _receive_reply(self) -> tuple[int, WorkerStep | RemoteError]:
        answer: WorkerReply = self.pipe.recv()
        reply_turn, result = answer
        if isinstance(result, RemoteError):
            return reply_turn, result
        return reply_turn, self._read_slot(result)

    def _read_slot(self, slot: FilledSlot) -> WorkerStep:
        self._layout = slot.layout or self._layout
        if slot.new_size:
            self._memory[slot.slot] = map_memory(recv_handle(self.pipe), slot.new_size)
        memory, layout = self._memory[slot.slot], self._layout
        assert memory is not None and layout is not None
        return WorkerStep(layout, slot.stats, memory[: layout.size])

    def _build_death_error(self) -> RemoteError:
        self.process.join(_EXIT_TIMEOUT)
        code = self.process.exitcode
        reason, hint = f"exit code {code}", "lower train.workers"
        if code is not None and code < 0:
            reason = f"signal {signal.Signals(-code).name}{', possibly out of memory' if code == -9 else ''}"
        elif code == 1:  # it could not import the main script
            hint = "put the call under `if __name__ == '__main__':`, or set train.workers=0"
        return RemoteError(ResourceError, f"a data worker died ({reason}); {hint}")


def stop_workers(workers: Sequence[Worker]) -> None:
    """Stop processes by closing their pipes; kill those that do not exit in time."""
    for worker in workers:
        worker.pipe.close()
    for worker in workers:
        worker.process.join(_EXIT_TIMEOUT)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()


def start_forkserver(*modules: str) -> None:
    """Start the fork server in advance, so that it imports torch and these modules in the background."""
    _build_context(*modules)
    with contextlib.suppress(OSError), _block_signals():  # the first worker will report it
        forkserver.ensure_running()


def _build_context(*modules: str) -> multiprocessing.context.ForkServerContext:
    # NOTE: not a fork of this process, which has a GPU and threads. The fork server has only imported modules: they are
    # imported once, and the workers share their pages.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", serve.__module__, *modules])
    return context


@contextlib.contextmanager
def _block_signals() -> Iterator[None]:
    """Block signals and set the environment of workers while a process starts.

    A fork server started inside the block keeps these signals blocked.
    """
    resource_tracker.ensure_running()  # NOTE: first, because it unblocks signals when it starts
    environment = {name: os.environ.get(name) for name in _WORKER_ENVIRONMENT}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.environ.update(_WORKER_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in environment.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
