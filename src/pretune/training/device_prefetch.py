"""How a step's batches get to a device: at once, or to a GPU by a stream of its own while another step is computed."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from pretune.core.types import Batch
from pretune.training.batch_buffer import Form, Packed
from pretune.training.batch_stats import Tally

Write = Callable[[Tensor], object]
"""Writes a step's bytes into a flat uint8 tensor."""


class Load(Protocol):
    """A step on its way."""

    tally: Tally

    def land(self) -> list[Batch]:
        """Its batches, for the stream that is current."""


class Carrier(Protocol):
    """How steps get to a device."""

    early: bool  # whether it pays to send the next step before it is asked for, by a thread of its own

    def carry(self, form: Form, tally: Tally, write: Write) -> Load:
        """Out of memory that is not ours; `write` has been called when this returns."""

    def bring(self, batches: list[Batch]) -> Load:
        """Out of our own."""


class _Here:
    """Batches that are there."""

    def __init__(self, tally: Tally, batches: list[Batch]) -> None:
        self.tally, self._batches = tally, batches

    def land(self) -> list[Batch]:
        return self._batches


class _Plain:
    """To the CPU, and to devices that copy when they are told to."""

    early = False

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def carry(self, form: Form, tally: Tally, write: Write) -> Load:
        memory = torch.empty(form.size, dtype=torch.uint8)
        write(memory)
        return _Here(tally, form.read(memory.to(self._device)))

    def bring(self, batches: list[Batch]) -> Load:
        return _Here(Tally.of(batches), [batch.to(self._device) for batch in batches])


class _Flying:
    """Bytes that a side stream copies to a GPU."""

    def __init__(self, form: Form, tally: Tally, memory: Tensor, copied: torch.cuda.Event) -> None:
        self.tally, self._form, self._memory, self._copied = tally, form, memory, copied

    def land(self) -> list[Batch]:
        stream = torch.cuda.current_stream(self._memory.device)
        stream.wait_event(self._copied)
        self._memory.record_stream(stream)  # it belongs to the side stream, which may not use it again before this one
        return self._form.read(self._memory)


class _Cuda:
    """To a GPU, by a stream of its own out of pinned memory: neither the host nor the computing stream waits."""

    early = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # NOTE: torch hands out 32 streams of each priority in turn. The one that passes are recorded on has the usual
        # priority, and what a thread sends meanwhile must not get into a recording.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._pinned: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        for _ in range(2):
            self._pinned.append((torch.empty(0, dtype=torch.uint8), None))

    def carry(self, form: Form, tally: Tally, write: Write) -> Load:
        pinned, copied = self._pinned.popleft()
        if copied is not None:
            copied.synchronize()  # two steps ago: it has long been
        if pinned.nbytes < form.size:
            pinned = torch.empty(form.size, dtype=torch.uint8, pin_memory=True)
        write(pinned[: form.size])
        with torch.cuda.stream(self._stream):
            memory = pinned[: form.size].to(self._device, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        self._pinned.append((pinned, copied))
        return _Flying(form, tally, memory, copied)

    def bring(self, batches: list[Batch]) -> Load:
        packed = Packed.of(batches)
        return self.carry(packed.form, Tally.of(batches), packed.write)


def carrier(device: torch.device) -> Carrier:
    """How steps get to this device."""
    return _Cuda(device) if device.type == "cuda" else _Plain(device)
