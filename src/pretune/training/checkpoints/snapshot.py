"""Copies of tensors in host memory, written to disk while training continues."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorSnapshot:
    """Copies of tensors by group and name, and the tied names (name -> name of the stored tensor)."""

    groups: dict[str, dict[str, Tensor]]
    tied_names: dict[str, dict[str, str]]
    events: list[torch.cuda.Event]

    def wait(self) -> None:
        """Wait until the device has copied all tensors."""
        for event in self.events:
            event.synchronize()


class SnapshotBuffers:
    """Reusable host buffers for copies: a snapshot must be written before the next one is taken."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[object, ...], Tensor] = {}

    @torch.no_grad()
    def copy(self, groups: Mapping[str, Mapping[str, Tensor]]) -> TensorSnapshot:
        """Copy all tensors; copies from a CUDA device complete later, in the order of its current stream.

        NOTE: on that stream itself, not a side stream, so that later kernels may change or free the tensors.
        """
        copies: dict[str, dict[str, Tensor]] = {group: {} for group in groups}
        tied_names: dict[str, dict[str, str]] = {}
        buffers: dict[tuple[object, ...], Tensor] = {}
        for group, tensors in groups.items():
            first_names: dict[tuple[object, ...], str] = {}
            for name, tensor in tensors.items():
                first = first_names.setdefault(_build_memory_key(tensor), name) if tensor.numel() else name
                if first != name:
                    tied_names.setdefault(group, {})[name] = first
                    continue
                key = (group, name, tensor.shape, tensor.dtype, tensor.is_cuda)
                buffer = self._buffers.get(key)
                if buffer is None:
                    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                copies[group][name] = buffers[key] = buffer.copy_(tensor, non_blocking=tensor.is_cuda)
        self._buffers = buffers
        devices = {tensor.device for tensors in groups.values() for tensor in tensors.values() if tensor.is_cuda}
        return TensorSnapshot(copies, tied_names, [_record_event(device) for device in devices])


def _build_memory_key(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that is equal for tensors with the same memory and layout."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _record_event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
