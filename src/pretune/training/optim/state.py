"""What an optimiser remembers, as tensors by name: `encoder.0.attention.q.weight.exp_avg`.

Names, not numbers: a checkpoint then fits a model whose groups are cut otherwise, and says what is wrong with it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from pretune.core.errors import CheckpointError, UsageError


def get_state_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the optimiser's state, counts of steps included, in the model's order. Nothing is copied."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    if not held.keys() <= names.keys():
        raise UsageError("the optimiser holds parameters that are not the model's; build it after the model is placed")
    return {
        f"{name}.{key}": value
        for place, name in names.items()
        if place in held
        for key, value in sorted(optimizer.state.get(held[place], {}).items())
    }


@torch.no_grad()
def load_state(optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put saved state back. What is missing, left over or of another form is an error, and then nothing is changed."""
    wanted = get_state_tensors(optimizer, model)
    for name, tensor in wanted.items():
        if name not in tensors:
            raise CheckpointError(
                f"optimiser state '{name}' is missing; the checkpoint is of another model or optimiser"
            )
        found = tensors[name]
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            raise CheckpointError(
                f"optimiser state '{name}' is {_describe_tensor(found)}; this run needs {_describe_tensor(tensor)}"
            )
    for name in tensors:
        if name not in wanted:
            raise CheckpointError(f"optimiser state '{name}' is not known here; the checkpoint is of another run")
    for name, tensor in wanted.items():
        if isinstance(tensor, DTensor) and not isinstance(tensors[name], DTensor):
            full = tensors[name].to(tensor.device)
            tensor.copy_(distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None))
        else:
            tensor.copy_(tensors[name])


def _describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
