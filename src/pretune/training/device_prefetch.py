"""How a step's batches get to a device: at once, or to a GPU by a stream of its own while another step is computed."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from pretune.core.types import Batch
from pretune.training.batch_buffer import BufferLayout, PackedBatches
from pretune.training.batch_stats import BatchStats

WriteFunction = Callable[[Tensor], object]
"""Writes a step's bytes into a flat uint8 tensor."""


class Transfer(Protocol):
    """A step on its way."""

    stats: BatchStats

    def result(self) -> list[Batch]:
        """Its batches, for the stream that is current."""


class DevicePrefetcher(Protocol):
    """How steps get to a device."""

    is_async: bool  # whether it pays to send the next step before it is asked for, by a thread of its own

    def send_packed(self, layout: BufferLayout, stats: BatchStats, write: WriteFunction) -> Transfer:
        """Out of memory that is not ours; `write` has been called when this returns."""

    def send(self, batches: list[Batch]) -> Transfer:
        """Out of our own."""


class _FinishedTransfer:
    """Batches that are there."""

    def __init__(self, stats: BatchStats, batches: list[Batch]) -> None:
        self.stats, self._batches = stats, batches

    def result(self) -> list[Batch]:
        return self._batches


class _SyncPrefetcher:
    """To the CPU, and to devices that copy when they are told to."""

    is_async = False

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send_packed(self, layout: BufferLayout, stats: BatchStats, write: WriteFunction) -> Transfer:
        memory = torch.empty(layout.size, dtype=torch.uint8)
        write(memory)
        return _FinishedTransfer(stats, layout.read(memory.to(self._device)))

    def send(self, batches: list[Batch]) -> Transfer:
        return _FinishedTransfer(BatchStats.from_batches(batches), [batch.to(self._device) for batch in batches])


class _CudaTransfer:
    """Bytes that a side stream copies to a GPU."""

    def __init__(self, layout: BufferLayout, stats: BatchStats, memory: Tensor, copy_event: torch.cuda.Event) -> None:
        self.stats, self._layout, self._memory, self._copy_event = stats, layout, memory, copy_event

    def result(self) -> list[Batch]:
        stream = torch.cuda.current_stream(self._memory.device)
        stream.wait_event(self._copy_event)
        self._memory.record_stream(stream)  # it belongs to the side stream, which may not use it again before this one
        return self._layout.read(self._memory)


class _CudaPrefetcher:
    """To a GPU, by a stream of its own out of pinned memory: neither the host nor the computing stream waits."""

    is_async = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # NOTE: torch hands out 32 streams of each priority in turn. The one that passes are recorded on has the usual
        # priority, and what a thread sends meanwhile must not get into a recording.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._pinned: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        for _ in range(2):
            self._pinned.append((torch.empty(0, dtype=torch.uint8), None))

    def send_packed(self, layout: BufferLayout, stats: BatchStats, write: WriteFunction) -> Transfer:
        pinned, copied = self._pinned.popleft()
        if copied is not None:
            copied.synchronize()  # two steps ago: it has long been
        if pinned.nbytes < layout.size:
            pinned = torch.empty(layout.size, dtype=torch.uint8, pin_memory=True)
        write(pinned[: layout.size])
        with torch.cuda.stream(self._stream):
            memory = pinned[: layout.size].to(self._device, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        self._pinned.append((pinned, copied))
        return _CudaTransfer(layout, stats, memory, copied)

    def send(self, batches: list[Batch]) -> Transfer:
        packed = PackedBatches.from_batches(batches)
        return self.send_packed(packed.layout, BatchStats.from_batches(batches), packed.write)


def build_prefetcher(device: torch.device) -> DevicePrefetcher:
    """How steps get to this device."""
    return _CudaPrefetcher(device) if device.type == "cuda" else _SyncPrefetcher(device)
