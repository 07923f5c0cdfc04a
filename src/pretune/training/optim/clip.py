"""Gradients cut to a length (Pascanu et al., 2013), without waiting for the device."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pretune.core.errors import UsageError


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale all gradients so that their common norm is at most `limit` (None: measure only); the norm before that.

    The norm is one float32 on the device, of all shards where weights are sharded. Where it is not finite the gradients
    are worth nothing afterwards: skip the step.
    """
    if max_norm is not None and not max_norm > 0:
        raise UsageError(f"clip {max_norm} must be greater than 0; null does not clip")
    slopes = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not slopes:
        return torch.zeros(())
    norms = torch._foreach_norm(slopes, 2.0, torch.float32)
    norm = torch.linalg.vector_norm(torch.stack(list(norms)))
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    if max_norm is not None:
        torch._foreach_mul_(slopes, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
