"""The batches of a step as one stretch of bytes, and back: one copy moves them all to another process or a device.

    packed = Packed.of(batches)                # where everything goes; nothing is copied yet
    packed.write(memory)                       # memory: a flat uint8 tensor of at least `packed.size` bytes
    packed.form.read(memory)                   # the batches again: views of that memory, wherever it lies

The form holds shapes but no values. Shapes being static, it is the same step after step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from pretune.core.types import Batch, Targets

_ALIGNMENT = 64  # bytes: what the widest loads of any device ask for


@dataclass(frozen=True, slots=True)
class _TensorSlot:
    """Where a tensor lies, instead of the tensor."""

    start: int
    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def view(self, memory: Tensor) -> Tensor:
        return memory[self.start : self.start + self.bytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """Batches with places instead of tensors."""

    batches: tuple[Any, ...]
    size: int

    def read(self, memory: Tensor) -> list[Batch]:
        """The batches that lie in a flat uint8 tensor, as views of it."""
        return [_map_parts(batch, _TensorSlot, lambda place: place.view(memory)) for batch in self.batches]


@dataclass(frozen=True, slots=True)
class PackedBatches:
    """Batches, and where in a stretch of bytes each of their tensors goes."""

    layout: BufferLayout
    tensors: tuple[tuple[_TensorSlot, Tensor], ...]

    @classmethod
    def from_batches(cls, batches: Sequence[Batch]) -> "PackedBatches":
        """Find a place for every tensor."""
        size, tensors = 0, list[tuple[_TensorSlot, Tensor]]()

        def put(tensor: Tensor) -> _TensorSlot:
            nonlocal size
            place = _TensorSlot(size, tensor.nbytes, tensor.dtype, tuple(tensor.shape))
            tensors.append((place, tensor))
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
            return place

        stripped = tuple(_map_parts(batch, Tensor, put) for batch in batches)
        return cls(BufferLayout(stripped, size), tuple(tensors))

    def write(self, memory: Tensor) -> None:
        """Copy every tensor to its place."""
        for place, tensor in self.tensors:
            place.view(memory).copy_(tensor)


def _map_parts(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """A batch with all its parts of a kind changed, those of its targets and its source too."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Batch | Targets):
        return replace(
            value, **{part.name: _map_parts(getattr(value, part.name), kind, change) for part in fields(value)}
        )
    return value
