"""Data workers: processes that make the requested batches and write them to shared memory.

A request names a slot of memory, and the slot is not written again before the next request for it. Only small messages
go through the pipe. The memory has no name in the file system, so nothing is left behind when its owners die.

A worker ends when its pipe closes or its parent dies. Signals to the process group are handled by the parent. Each
worker has its own pipe and replies in request order. An error in making a step is a reply like any other, raised when
the step is due: the same error for any number of workers. A killed worker is noticed by the end of its pipe or by its
process sentinel.
"""

import contextlib
import mmap
import multiprocessing
import os
import signal
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle

import torch
from torch import Tensor

from pretune.core.errors import RemoteError, ResourceError, UsageError
from pretune.training.batch_transfer import BatchRequest, BatchSource, BatchStats, BufferLayout, PackedBatches

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals handled by the parent."""
_OUT_OF_MEMORY = "out of memory in a data worker; lower train.workers"
_POLL_SECONDS = 1.0  # seconds between checks for the parent


@dataclass(frozen=True, slots=True)
class FilledSlot:
    """Slot that holds a step."""

    slot: int
    stats: BatchStats
    layout: BufferLayout | None  # None: same as the previous step
    new_size: int  # size of newly allocated memory, whose descriptor follows; 0: memory unchanged


WorkerReply = tuple[int, FilledSlot | RemoteError]
"""The turn of the request, and its result."""


def serve(pipe: Connection, parent: int, source: BatchSource, slots: int) -> None:
    """Run the worker: answer requests until the pipe closes."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked while the process started
    writer = _SlotWriter(source, slots)
    waiting: deque[BatchRequest] = deque()
    with contextlib.suppress(EOFError, OSError):  # the pipe is closed
        while True:
            os.kill(parent, 0)  # raises if the parent is gone: a child of it may hold the pipe open
            while pipe.poll(0 if waiting else _POLL_SECONDS):
                waiting.append(pipe.recv())
            while waiting and waiting[0].turn < waiting[-1].turn:
                waiting.popleft()
            if waiting:
                writer.answer(pipe, waiting.popleft())


class _SlotWriter:
    """Shared memory slots of a worker."""

    def __init__(self, source: BatchSource, slots: int) -> None:
        self._source = source
        self._memory: list[Tensor | None] = [None] * slots
        self._layout: BufferLayout | None = None

    def answer(self, pipe: Connection, request: BatchRequest) -> None:
        """Make a step and send its slot, or the error."""
        try:
            batches = request.make(self._source)
            packed_batches, stats = PackedBatches.from_batches(batches), BatchStats.from_batches(batches)
            descriptor = self._reserve_slot(request.slot, packed_batches.layout.size)
            memory = self._memory[request.slot]
            assert memory is not None
            packed_batches.write(memory)
        except Exception as error:
            pipe.send((request.turn, RemoteError.from_exception(error, memory_message=_OUT_OF_MEMORY)))
            return
        layout = None if packed_batches.layout == self._layout else packed_batches.layout
        new_size = 0 if descriptor is None else memory.nbytes
        pipe.send((request.turn, FilledSlot(request.slot, stats, layout, new_size)))
        self._layout = packed_batches.layout
        if descriptor is not None:
            send_handle(pipe, descriptor, None)
            os.close(descriptor)

    def _reserve_slot(self, slot: int, size: int) -> int | None:
        """Ensure that a slot has `size` bytes; returns a descriptor if new memory was allocated."""
        memory = self._memory[slot]
        if memory is not None and memory.nbytes >= size:
            return None
        try:
            descriptor = _create_memory(size)
            self._memory[slot] = map_memory(os.dup(descriptor), size)
        except OSError as error:
            raise ResourceError(
                f"no memory for {size:,} bytes of batches ({error.strerror}); lower train.workers or train.batch_tokens"
            ) from error
        return descriptor


def map_memory(descriptor: int, size: int) -> Tensor:
    """Map the memory of a descriptor, and close the descriptor."""
    try:
        return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
    finally:
        os.close(descriptor)


def _create_memory(size: int) -> int:
    """Return a descriptor of anonymous shared memory, freed with its last user."""
    if hasattr(os, "memfd_create"):  # NOTE: not /dev/shm, which containers make small
        descriptor = os.memfd_create("pretune-batches")
        os.posix_fallocate(descriptor, 0, size)  # an error now instead of SIGBUS at the first write
        return descriptor
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), size)
        return os.dup(file.fileno())


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
                reply: WorkerReply = self.pipe.recv()
                reply_turn, result = reply
                step = self._read_slot(result) if isinstance(result, FilledSlot) else result
            except (EOFError, OSError):
                return self._build_death_error()
            if reply_turn == turn:
                return step

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
