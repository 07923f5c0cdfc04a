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
from pretune.core.remote_error import Fault
from pretune.core.types import Batch
from pretune.training.batch_buffer import Form, Packed
from pretune.training.batch_stats import Tally

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Those that are the parent's to judge."""
_FULL = "out of memory in a data worker; lower train.workers"
_GLANCE = 1.0  # seconds between looks at whether the parent is still there


class Source(Protocol):
    """Batches by step: a `Stream`, or stages of them. It travels to the workers, so it should be small to send."""

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """The batch of a step, or one of several equal parts of its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A step to make: its parts `first` to before `last` of so many. What was asked in earlier turns is void."""

    turn: int
    step: int
    slot: int
    first: int
    last: int
    parts: int

    def make(self, source: Source) -> list[Batch]:
        """The batches it asks for."""
        return [source.batch(self.step, part=part, parts=self.parts) for part in range(self.first, self.last)]


@dataclass(frozen=True, slots=True)
class Filled:
    """A slot holds a step."""

    slot: int
    tally: Tally
    form: Form | None  # None: that of the step before
    fresh: int  # the size of the slot's new memory, whose descriptor follows; 0: it is where it was


Answer = tuple[int, Filled | Fault]
"""The turn of the request, and what came of it."""


def serve(pipe: Connection, parent: int, source: Source, slots: int) -> None:
    """The life of a worker."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # they were held back while the process started
    maker = _Maker(source, slots)
    waiting: deque[Request] = deque()
    with contextlib.suppress(EOFError, OSError):  # the pipe is closed
        while True:
            os.kill(parent, 0)  # an error once it is gone: the pipe may be held open by some child of its
            while pipe.poll(0 if waiting else _GLANCE):
                waiting.append(pipe.recv())
            while waiting and waiting[0].turn < waiting[-1].turn:
                waiting.popleft()
            if waiting:
                maker.answer(pipe, waiting.popleft())


class _Maker:
    """The slots, and what they hold."""

    def __init__(self, source: Source, slots: int) -> None:
        self._source = source
        self._memory: list[Tensor | None] = [None] * slots
        self._form: Form | None = None

    def answer(self, pipe: Connection, request: Request) -> None:
        """Make a step, and tell of it."""
        try:
            batches = request.make(self._source)
            packed, tally = Packed.of(batches), Tally.of(batches)
            descriptor = self._room(request.slot, packed.form.size)
            memory = self._memory[request.slot]
            assert memory is not None
            packed.write(memory)
        except Exception as error:
            pipe.send((request.turn, Fault.of(error, memory=_FULL)))
            return
        form = None if packed.form == self._form else packed.form
        fresh = 0 if descriptor is None else memory.nbytes
        pipe.send((request.turn, Filled(request.slot, tally, form, fresh)))
        self._form = packed.form
        if descriptor is not None:
            send_handle(pipe, descriptor, None)
            os.close(descriptor)

    def _room(self, slot: int, size: int) -> int | None:
        """Give a slot room for so many bytes; where that takes new memory, a descriptor of it."""
        now = self._memory[slot]
        if now is not None and now.nbytes >= size:
            return None
        try:
            descriptor = _anonymous(size)
            self._memory[slot] = mapped(os.dup(descriptor), size)
        except OSError as error:
            raise ResourceError(
                f"no room for {size:,} bytes of batches ({error.strerror}); lower train.workers or train.batch_tokens"
            ) from error
        return descriptor


def mapped(descriptor: int, size: int) -> Tensor:
    """The memory behind a descriptor, which is closed."""
    try:
        return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
    finally:
        os.close(descriptor)


def _anonymous(size: int) -> int:
    """A descriptor of memory without a name; it is there until nobody has it open."""
    if hasattr(os, "memfd_create"):  # NOTE: not /dev/shm, which containers make small
        descriptor = os.memfd_create("pretune-batches")
        os.posix_fallocate(descriptor, 0, size)  # a fault now, and not a signal at the first write
        return descriptor
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), size)
        return os.dup(file.fileno())
