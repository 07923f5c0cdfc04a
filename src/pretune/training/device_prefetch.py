"""Transfer of batches to a device: synchronous, or to a GPU on a side stream while another step is computed."""

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
    """A step being copied to the device."""

    stats: BatchStats

    def result(self) -> list[Batch]:
        """Return the batches, ready for the current stream."""


class DevicePrefetcher(Protocol):
    """Copies steps to a device."""

    is_async: bool  # True if the next step should be sent ahead of time, from another thread

    def send_packed(self, layout: BufferLayout, stats: BatchStats, write: WriteFunction) -> Transfer:
        """Send a step from foreign memory; `write` has been called when this returns."""

    def send(self, batches: list[Batch]) -> Transfer:
        """Send batches of this process."""


class _FinishedTransfer:
    """Batches already on the device."""

    def __init__(self, stats: BatchStats, batches: list[Batch]) -> None:
        self.stats, self._batches = stats, batches

    def result(self) -> list[Batch]:
        return self._batches


class _SyncPrefetcher:
    """Blocking copies, for the CPU and other devices."""

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
    """Bytes being copied to a GPU by a side stream."""

    def __init__(self, layout: BufferLayout, stats: BatchStats, memory: Tensor, copy_event: torch.cuda.Event) -> None:
        self.stats, self._layout, self._memory, self._copy_event = stats, layout, memory, copy_event

    def result(self) -> list[Batch]:
        stream = torch.cuda.current_stream(self._memory.device)
        stream.wait_event(self._copy_event)
        self._memory.record_stream(stream)  # the side stream's allocator must not reuse it before this stream is done
        return self._layout.read(self._memory)


class _CudaPrefetcher:
    """Asynchronous copies from pinned memory on a side stream: neither the host nor the compute stream waits."""

    is_async = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # NOTE: torch hands out 32 streams of each priority in turn. CUDA graphs are captured on one of normal priority,
        # and copies issued by a thread meanwhile must not get into the capture.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._pinned_buffers: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        for _ in range(2):
            self._pinned_buffers.append((torch.empty(0, dtype=torch.uint8), None))

    def send_packed(self, layout: BufferLayout, stats: BatchStats, write: WriteFunction) -> Transfer:
        pinned_memory, copy_event = self._pinned_buffers.popleft()
        if copy_event is not None:
            copy_event.synchronize()  # the copy of two steps ago, long finished
        if pinned_memory.nbytes < layout.size:
            pinned_memory = torch.empty(layout.size, dtype=torch.uint8, pin_memory=True)
        write(pinned_memory[: layout.size])
        with torch.cuda.stream(self._stream):
            memory = pinned_memory[: layout.size].to(self._device, non_blocking=True)
            copy_event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copy_event.record(self._stream)
        self._pinned_buffers.append((pinned_memory, copy_event))
        return _CudaTransfer(layout, stats, memory, copy_event)

    def send(self, batches: list[Batch]) -> Transfer:
        packed_batches = PackedBatches.from_batches(batches)
        return self.send_packed(packed_batches.layout, BatchStats.from_batches(batches), packed_batches.write)


def build_prefetcher(device: torch.device) -> DevicePrefetcher:
    """Return the prefetcher for a device."""
    return _CudaPrefetcher(device) if device.type == "cuda" else _SyncPrefetcher(device)
