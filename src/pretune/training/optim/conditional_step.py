"""Optimizer steps that can be skipped on the device, without the host reading the condition.

torch's fused optimizers leave weights and state unchanged if their attribute `found_inf` is 1 (made for loss scaling).
Ours follow the same convention: they compute the new values, and `write_if` writes them or the old ones.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from pretune.core.errors import UsageError

CHUNK_SIZE = 2**26
"""Elements of weights processed at once; bounds the memory of temporaries."""


def step_if(optimizer: Optimizer, ok: Tensor) -> None:
    """Take a step if `ok` (a scalar on the weights' device) is true; otherwise change nothing, bit for bit."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        name = type(optimizer).__name__
        raise UsageError(f"optimizer '{name}' cannot skip a step on the device; build it from a spec of training.optim")
    untyped_optimizer: Any = optimizer
    untyped_optimizer.found_inf = 1.0 - ok.to(torch.float32)
    try:
        optimizer.step()
    finally:
        del untyped_optimizer.found_inf


def set_rates(optimizer: Optimizer, factor: float) -> None:
    """Set every group's learning rate to its peak times the schedule's factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def get_step_condition(optimizer: Optimizer) -> Tensor | None:
    """Return the condition passed to `step_if`, a bool on the device; None in an unconditional step."""
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    return None if found_inf is None else found_inf == 0


@torch.no_grad()
def write_if(ok: Tensor | None, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Write the new values if `ok`. By selection, not multiplication: 0 x NaN is NaN, and -0 + 0 is 0."""
    for target, value in zip(map(_to_local, old), map(_to_local, new), strict=True):
        if ok is None:
            target.copy_(value)
        else:
            torch.where(ok, value, target, out=target)


def iter_chunks(group: dict[str, Any], *, same_shape: bool = False) -> Iterator[list[Tensor]]:
    """Yield chunks of the group's weights that have a gradient; with `same_shape` each chunk has a single shape."""
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
    """Return the gradients of weights that have one."""
    return [weight.grad for weight in weights if weight.grad is not None]


def create_counter(weight: Tensor, value: float = 0.0) -> Tensor:
    """Create a step counter on a weight's device (float32, exact up to 2^24)."""
    return torch.full((), value, dtype=torch.float32, device=weight.device)


def _to_local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
