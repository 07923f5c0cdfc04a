"""Memory check before weights are allocated."""

import os
from typing import Protocol

import torch

from pretune.core.errors import ResourceError
from pretune.models.spec import Params


class HasParams(Protocol):
    """A spec of any shape."""

    def params(self) -> Params: ...


def check_memory(spec: HasParams, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
    """Raise `ResourceError` if the weights alone exceed the total memory of the device."""
    count = spec.params().total
    need, have = count * dtype.itemsize, _get_capacity(torch.device(device))
    if have is not None and need > have:
        raise ResourceError(
            f"{count:,} parameters need {need / 1e9:,.1f} GB of memory, but {device} has {have / 1e9:,.1f} GB; "
            "choose a smaller model or another device"
        )


def _get_capacity(device: torch.device) -> int | None:
    """Return the total memory of a device in bytes; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "cpu" and hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None
