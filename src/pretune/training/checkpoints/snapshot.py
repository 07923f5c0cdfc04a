"""Copies of tensors in host memory, so that training goes on while they are written."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorSnapshot:
    """Tensors as they were: their copies by group and name, and the names that share one (name -> the one stored)."""

    groups: dict[str, dict[str, Tensor]]
    tied: dict[str, dict[str, str]]
    events: list[torch.cuda.Event]

    def wait(self) -> None:
        """Wait until a device has delivered all of them."""
        for event in self.events:
            event.synchronize()


class SnapshotBuffers:
    """Takes copies, into the same memory every time: the last ones must be written before new ones are taken."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[object, ...], Tensor] = {}

    @torch.no_grad()
    def copy(self, groups: Mapping[str, Mapping[str, Tensor]]) -> TensorSnapshot:
        """Copy all tensors; those of a CUDA device arrive later, in the order of its current stream.

        NOTE: on that stream itself, not one beside it: whatever comes after may then change or free the tensors.
        """
        taken: dict[str, dict[str, Tensor]] = {group: {} for group in groups}
        tied: dict[str, dict[str, str]] = {}
        used: dict[tuple[object, ...], Tensor] = {}
        for group, tensors in groups.items():
            seen: dict[tuple[object, ...], str] = {}
            for name, tensor in tensors.items():
                first = seen.setdefault(_build_memory_key(tensor), name) if tensor.numel() else name
                if first != name:
                    tied.setdefault(group, {})[name] = first
                    continue
                key = (group, name, tensor.shape, tensor.dtype, tensor.is_cuda)
                buffer = self._buffers.get(key)
                if buffer is None:
                    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                taken[group][name] = used[key] = buffer.copy_(tensor, non_blocking=tensor.is_cuda)
        self._buffers = used
        devices = {tensor.device for tensors in groups.values() for tensor in tensors.values() if tensor.is_cuda}
        return TensorSnapshot(taken, tied, [_record_event(device) for device in devices])


def _build_memory_key(tensor: Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same memory, seen in the same way."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _record_event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
