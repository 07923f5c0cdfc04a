"""Gradient clipping by norm (Pascanu et al., 2013), without synchronizing with the device."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pretune.core.errors import UsageError


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
