"""Optimizer state as tensors by name: `encoder.0.attention.q.weight.exp_avg`.

Names instead of indices: a checkpoint then fits a model with other parameter groups, and errors name the tensor.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from pretune.core.errors import CheckpointError, UsageError


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
