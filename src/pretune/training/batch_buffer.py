"""The batches of a step serialized into one byte buffer, so that a single copy moves them to a process or device.

    packed = PackedBatches.from_batches(batches)   # computes the layout; nothing is copied yet
    packed.write(memory)                           # memory: a flat uint8 tensor of at least `packed.layout.size` bytes
    packed.layout.read(memory)                     # the batches again, as views of that memory on any device

The layout holds shapes but no values. Since shapes are static, it is the same for every step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from pretune.core.types import Batch, Targets

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
        return replace(
            value, **{part.name: _map_parts(getattr(value, part.name), kind, change) for part in fields(value)}
        )
    return value
