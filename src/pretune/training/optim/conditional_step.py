"""One step of any optimiser, or none: whether it is taken is a tensor that the host never looks at.

torch's fused optimisers leave weights and state alone where their attribute `found_inf` is 1 (it is there for loss
scaling). Ours keep to the same convention: they compute what would be new and `write_if` writes it, or the old again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from pretune.core.errors import UsageError

CHUNK_SIZE = 2**26
"""Elements of weights worked on at once: it bounds the memory of what is computed beside them."""


def step_if(optimizer: Optimizer, ok: Tensor) -> None:
    """Take a step where `ok` (one bool or number, on the weights' device) is true; otherwise change not one bit."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        name = type(optimizer).__name__
        raise UsageError(f"optimiser '{name}' cannot skip a step on the device; build it from a spec of train.optim")
    found: Any = optimizer
    found.found_inf = 1.0 - ok.to(torch.float32)
    try:
        optimizer.step()
    finally:
        del found.found_inf


def set_rates(optimizer: Optimizer, factor: float) -> None:
    """Set every group's learning rate: its peak times what the schedule says."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def get_step_condition(optimizer: Optimizer) -> Tensor | None:
    """Inside one of our own optimisers' steps: a bool on the device, or None where nobody asked."""
    found: Tensor | None = getattr(optimizer, "found_inf", None)
    return None if found is None else found == 0


@torch.no_grad()
def write_if(ok: Tensor | None, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Write the new values over the old ones where `ok`. A choice, not a product: 0 x NaN is NaN, and -0 + 0 is 0."""
    for was, now in zip(map(_to_local, old), map(_to_local, new), strict=True):
        if ok is None:
            was.copy_(now)
        else:
            torch.where(ok, now, was, out=was)


def iter_chunks(group: dict[str, Any], *, same_shape: bool = False) -> Iterator[list[Tensor]]:
    """The group's weights that have a gradient, some at a time; with `alike` only such of one shape together."""
    lists: dict[Any, list[Tensor]] = {}
    for parameter in group["params"]:
        if parameter.grad is not None:
            lists.setdefault(tuple(parameter.shape) if same_shape else None, []).append(parameter)
    for weights in lists.values():
        chunk: list[Tensor] = []
        size = 0
        for weight in weights:
            if chunk and size + weight.numel() > CHUNK_SIZE:
                yield chunk
                chunk, size = [], 0
            chunk.append(weight)
            size += weight.numel()
        yield chunk


def get_gradients(weights: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of weights that have one."""
    return [weight.grad for weight in weights if weight.grad is not None]


def create_counter(weight: Tensor, value: float = 0.0) -> Tensor:
    """A number that belongs to a weight and lives on its device: a count of steps, exact up to 2^24."""
    return torch.full((), value, dtype=torch.float32, device=weight.device)


def _to_local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
