"""Batches of a step: requests, token counts, and the transfer in one byte buffer, so that one copy moves them.

    packed = PackedBatches.from_batches(batches)   # computes the layout; nothing is copied yet
    packed.write(memory)                           # memory: a flat uint8 tensor of at least `packed.layout.size` bytes
    packed.layout.read(memory)                     # the batches again, as views of that memory on any device

The layout holds shapes but no values. Since shapes are static, it is the same for every step. The copy to a device is
synchronous, or to a GPU on a side stream while another step is computed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from pretune.core.types import IGNORE_INDEX, Batch, Targets


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStats:
    """Sums over sequences of n tokens (encoder side of encoder-decoders: m); additive over steps.

    The squares give the cost of attention: a token attends within its sequence only.
    """

    sequences: int = 0
    tokens: int = 0  # sum of n
    squares: int = 0  # sum of n²
    targets: int = 0  # positions of the vocabulary head, unused slots excluded
    source: int = 0  # sum of m
    source_squares: int = 0  # sum of m²
    products: int = 0  # sum of m n: pairs of cross-attention

    @classmethod
    def from_batches(cls, batches: Sequence[Batch]) -> "BatchStats":
        """Count batches in host memory."""
        total = cls()
        for batch in batches:
            n = _compute_lengths(batch)
            total += cls(sequences=int((n > 0).sum()), tokens=int(n.sum()), squares=int((n * n).sum()))
            if batch.targets is not None:
                total += cls(targets=int((batch.targets.labels != IGNORE_INDEX).sum()))
            if batch.source is not None:
                m = _compute_lengths(batch.source)
                total += cls(source=int(m.sum()), source_squares=int((m * m).sum()), products=int((m * n).sum()))
        return total

    def __add__(self, stats: "BatchStats") -> "BatchStats":
        sums = {part.name: getattr(self, part.name) + getattr(stats, part.name) for part in fields(BatchStats)}
        return BatchStats(**sums)

    @property
    def total_tokens(self) -> int:
        """Tokens of encoder and decoder."""
        return self.tokens + self.source


def _compute_lengths(batch: Batch) -> Tensor:
    """Return the number of tokens `[C]` of each cell that holds a sequence; 0 for padding and unused cells."""
    start, end = batch.offsets[:-1].long(), batch.offsets[1:].long()
    first = batch.sequence[start.clamp(max=len(batch.sequence) - 1)]  # sequence id of the cell's first token
    return (end - start) * (first >= 0)


_ALIGNMENT = 64  # bytes, for the widest vector loads


@dataclass(frozen=True, slots=True)
class _TensorSlot:
    """Position, dtype and shape of a tensor in the buffer."""

    start: int
    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def view(self, memory: Tensor) -> Tensor:
        return memory[self.start : self.start + self.bytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """Batches with slots in place of tensors."""

    batches: tuple[Any, ...]
    size: int

    def read(self, memory: Tensor) -> list[Batch]:
        """Return the batches stored in a flat uint8 tensor, as views of it."""
        return [_map_parts(batch, _TensorSlot, lambda slot: slot.view(memory)) for batch in self.batches]


@dataclass(frozen=True, slots=True)
class PackedBatches:
    """Batches and the buffer slot of each of their tensors."""

    layout: BufferLayout
    tensors: tuple[tuple[_TensorSlot, Tensor], ...]

    @classmethod
    def from_batches(cls, batches: Sequence[Batch]) -> "PackedBatches":
        """Assign a slot to every tensor."""
        size, tensors = 0, list[tuple[_TensorSlot, Tensor]]()

        def put(tensor: Tensor) -> _TensorSlot:
            nonlocal size
            slot = _TensorSlot(size, tensor.nbytes, tensor.dtype, tuple(tensor.shape))
            tensors.append((slot, tensor))
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
            return slot

        batches_of_slots = tuple(_map_parts(batch, Tensor, put) for batch in batches)
        return cls(BufferLayout(batches_of_slots, size), tuple(tensors))

    def write(self, memory: Tensor) -> None:
        """Copy every tensor to its slot."""
        for slot, tensor in self.tensors:
            slot.view(memory).copy_(tensor)


def _map_parts(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Apply a function to all parts of a type in a batch, its targets and its source."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Batch | Targets):
        parts = {part.name: _map_parts(getattr(value, part.name), kind, change) for part in fields(value)}
        return replace(value, **parts)
    return value


WriteFunction = Callable[[Tensor], object]
"""Writes a step's bytes into a flat uint8 tensor."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A step being copied to the device."""

    stats: BatchStats
    result: Callable[[], list[Batch]]
    """Return the batches, ready for the current stream."""


class DevicePrefetcher:
    """Copies steps to a device: blocking, or to a GPU asynchronously from pinned memory on a side stream.

    Neither the host nor the compute stream waits for a GPU: the next step should be sent ahead of time, from another
    thread.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, None
        if device.type == "cuda":
            # NOTE: torch hands out 32 streams of each priority in turn. CUDA graphs are captured on one of normal
            # priority, and copies issued by a thread meanwhile must not get into the capture.
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            empty: tuple[Tensor, torch.cuda.Event | None] = torch.empty(0, dtype=torch.uint8), None
            self._pinned_buffers = deque([empty, empty])

    @property
    def is_async(self) -> bool:
        """True if the next step should be sent ahead of time."""
        return self._stream is not None

    def send_packed(self, layout: BufferLayout, stats: BatchStats, write: WriteFunction) -> Transfer:
        """Send a step from foreign memory; `write` has been called when this returns."""
        if self._stream is None:
            host_memory = torch.empty(layout.size, dtype=torch.uint8)
            write(host_memory)
            return Transfer(stats, partial(layout.read, host_memory.to(self._device)))
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
        return Transfer(stats, partial(_read_copy, layout, memory, copy_event))

    def send(self, batches: list[Batch]) -> Transfer:
        """Send batches of this process."""
        stats = BatchStats.from_batches(batches)
        if self._stream is None:
            moved_batches = [batch.to(self._device) for batch in batches]
            return Transfer(stats, lambda: moved_batches)
        packed_batches = PackedBatches.from_batches(batches)
        return self.send_packed(packed_batches.layout, stats, packed_batches.write)


def _read_copy(layout: BufferLayout, memory: Tensor, copy_event: torch.cuda.Event) -> list[Batch]:
    """Return the batches of a copy to a GPU, for the current stream."""
    stream = torch.cuda.current_stream(memory.device)
    stream.wait_event(copy_event)
    memory.record_stream(stream)  # the side stream's allocator must not reuse it before this stream is done
    return layout.read(memory)
