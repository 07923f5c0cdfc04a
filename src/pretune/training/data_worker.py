"""Data worker process: makes the requested batches and writes them to shared memory.

A request names a slot of memory, and the slot is not written again before the next request for it. Only small messages
go through the pipe. The memory has no name in the file system, so nothing is left behind when its owners die.

A worker ends when its pipe closes or its parent dies. Signals to the process group are handled by the parent.
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
"""Signals handled by the parent."""
_OUT_OF_MEMORY = "out of memory in a data worker; lower train.workers"
_POLL_SECONDS = 1.0  # seconds between checks for the parent


class BatchSource(Protocol):
    """Batches by step: a `BatchStream`, or phases of them. It is pickled for the workers, so it should be small."""

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """Return the batch of a step, or one of `parts` equal parts of its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A step to make, parts `start_part` up to `stop_part` of `parts`. Requests of earlier turns are void."""

    turn: int
    step: int
    slot: int
    start_part: int
    stop_part: int
    parts: int

    def make(self, source: BatchSource) -> list[Batch]:
        """Make the requested batches."""
        return [source.batch(self.step, part=part, parts=self.parts) for part in range(self.start_part, self.stop_part)]


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
