"""Parts that optimizers share: skippable steps, gradient clipping, state as tensors by name.

A step can be skipped on the device, without the host reading the condition: torch's fused optimizers leave weights and
state unchanged if their attribute `found_inf` is 1 (made for loss scaling). Ours follow the same convention: they
compute the new values, and `write_if` writes them or the old ones.

State has names instead of indices (`encoder.0.attention.q.weight.exp_avg`): a checkpoint then fits a model with other
parameter groups, and errors name the tensor.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from pretune.core.config import Ge, Lt
from pretune.core.errors import CheckpointError, UsageError

Beta = Annotated[float, Ge(0), Lt(1)]
"""Decay rate of a moving average."""
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


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale gradients to a total norm of at most `max_norm` (None: measure only); returns the norm before clipping.

    The norm is a float32 on the device, over all shards of sharded weights. If it is not finite, the gradients are
    useless afterwards: skip the step.
    """
    if max_norm is not None and not max_norm > 0:
        raise UsageError(f"clip must be > 0 or null for no clipping, got {max_norm}")
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    norms = torch._foreach_norm(gradients, 2.0, torch.float32)
    norm = torch.linalg.vector_norm(torch.stack(list(norms)))
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    if max_norm is not None:
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def get_state_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return all tensors of the optimizer state, step counts included, in model order, without copies."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    if not parameters.keys() <= names.keys():
        raise UsageError("the optimizer has parameters of another model; build it after the model is on its device")
    return {
        f"{name}.{key}": value
        for identity, name in names.items()
        if identity in parameters
        for key, value in sorted(optimizer.state.get(parameters[identity], {}).items())
    }


@torch.no_grad()
def load_state(optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load state; a missing, unexpected or mismatched tensor raises a CheckpointError, and then nothing is changed."""
    state_tensors = get_state_tensors(optimizer, model)
    for name, tensor in state_tensors.items():
        if name not in tensors:
            raise CheckpointError(
                f"optimizer state '{name}' is missing; the checkpoint is of another model or optimizer"
            )
        value = tensors[name]
        if (value.shape, value.dtype) != (tensor.shape, tensor.dtype):
            raise CheckpointError(
                f"optimizer state '{name}' is {_describe_tensor(value)}; this run needs {_describe_tensor(tensor)}"
            )
    for name in tensors:
        if name not in state_tensors:
            raise CheckpointError(f"unexpected optimizer state '{name}'; the checkpoint is of another run")
    for name, tensor in state_tensors.items():
        if isinstance(tensor, DTensor) and not isinstance(tensors[name], DTensor):
            full = tensors[name].to(tensor.device)
            tensor.copy_(distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None))
        else:
            tensor.copy_(tensors[name])


def _describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
