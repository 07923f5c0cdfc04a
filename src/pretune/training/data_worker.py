"""What a data worker does: make the steps it is asked for, and leave them in memory that both sides see.

A request names a slot of memory, and the slot is not written again before the next request for it. Only small messages
travel through the pipe. The memory has no name anywhere, so that nothing is left of it when its owners are gone,
however they went.

A worker ends when its pipe does or its parent is gone; signals to the whole group are the parent's to judge.
"""

import contextlib
import mmap
import os
import signal
import tempfile
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Protocol

import torch
from torch import Tensor

from pretune.core.errors import ResourceError
from pretune.core.remote_error import RemoteError
from pretune.core.types import Batch
from pretune.training.batch_buffer import BufferLayout, PackedBatches
from pretune.training.batch_stats import BatchStats

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Those that are the parent's to judge."""
_OUT_OF_MEMORY = "out of memory in a data worker; lower train.workers"
_POLL_SECONDS = 1.0  # seconds between looks at whether the parent is still there


class BatchSource(Protocol):
    """Batches by step: a `Stream`, or stages of them. It travels to the workers, so it should be small to send."""

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """The batch of a step, or one of several equal parts of its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A step to make: its parts `start_part` to before `stop_part` of so many. What was asked in earlier turns is void."""

    turn: int
    step: int
    slot: int
    start_part: int
    stop_part: int
    parts: int

    def make(self, source: BatchSource) -> list[Batch]:
        """The batches it asks for."""
        return [source.batch(self.step, part=part, parts=self.parts) for part in range(self.start_part, self.stop_part)]


@dataclass(frozen=True, slots=True)
class FilledSlot:
    """A slot holds a step."""

    slot: int
    stats: BatchStats
    layout: BufferLayout | None  # None: that of the step before
    new_size: int  # the size of the slot's new memory, whose descriptor follows; 0: it is where it was


WorkerReply = tuple[int, FilledSlot | RemoteError]
"""The turn of the request, and what came of it."""


def serve(pipe: Connection, parent: int, source: BatchSource, slots: int) -> None:
    """The life of a worker."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # they were held back while the process started
    maker = _SlotWriter(source, slots)
    waiting: deque[BatchRequest] = deque()
    with contextlib.suppress(EOFError, OSError):  # the pipe is closed
        while True:
            os.kill(parent, 0)  # an error once it is gone: the pipe may be held open by some child of its
            while pipe.poll(0 if waiting else _POLL_SECONDS):
                waiting.append(pipe.recv())
            while waiting and waiting[0].turn < waiting[-1].turn:
                waiting.popleft()
            if waiting:
                maker.answer(pipe, waiting.popleft())


class _SlotWriter:
    """The slots, and what they hold."""

    def __init__(self, source: BatchSource, slots: int) -> None:
        self._source = source
        self._memory: list[Tensor | None] = [None] * slots
        self._layout: BufferLayout | None = None

    def answer(self, pipe: Connection, request: BatchRequest) -> None:
        """Make a step, and tell of it."""
        try:
            batches = request.make(self._source)
            packed, tally = PackedBatches.from_batches(batches), BatchStats.from_batches(batches)
            descriptor = self._reserve_slot(request.slot, packed.layout.size)
            memory = self._memory[request.slot]
            assert memory is not None
            packed.write(memory)
        except Exception as error:
            pipe.send((request.turn, RemoteError.from_exception(error, memory_message=_OUT_OF_MEMORY)))
            return
        form = None if packed.layout == self._layout else packed.layout
        fresh = 0 if descriptor is None else memory.nbytes
        pipe.send((request.turn, FilledSlot(request.slot, tally, form, fresh)))
        self._layout = packed.layout
        if descriptor is not None:
            send_handle(pipe, descriptor, None)
            os.close(descriptor)

    def _reserve_slot(self, slot: int, size: int) -> int | None:
        """Give a slot room for so many bytes; where that takes new memory, a descriptor of it."""
        now = self._memory[slot]
        if now is not None and now.nbytes >= size:
            return None
        try:
            descriptor = _create_memory(size)
            self._memory[slot] = map_memory(os.dup(descriptor), size)
        except OSError as error:
            raise ResourceError(
                f"no room for {size:,} bytes of batches ({error.strerror}); lower train.workers or train.batch_tokens"
            ) from error
        return descriptor


def map_memory(descriptor: int, size: int) -> Tensor:
    """The memory behind a descriptor, which is closed."""
    try:
        return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
    finally:
        os.close(descriptor)


def _create_memory(size: int) -> int:
    """A descriptor of memory without a name; it is there until nobody has it open."""
    if hasattr(os, "memfd_create"):  # NOTE: not /dev/shm, which containers make small
        descriptor = os.memfd_create("pretune-batches")
        os.posix_fallocate(descriptor, 0, size)  # a fault now, and not a signal at the first write
        return descriptor
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), size)
        return os.dup(file.fileno())
