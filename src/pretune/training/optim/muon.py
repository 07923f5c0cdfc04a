"""Muon: momentum orthogonalized by Newton-Schulz (Jordan et al., 2024), for the matrices inside the blocks."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from pretune.core.config import NonNegative, spec
from pretune.core.errors import UsageError
from pretune.training.distributed import shard_like, unshard
from pretune.training.optim import (
    AdamW,
    Beta,
    ParameterGroup,
    SkippableOptimizer,
    TorchGroup,
    get_step_condition,
    step_if,
    write_if,
)

QUINTIC_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Jordan's polynomial: steepest at zero, at the price of singular values between about 0.7 and 1.2 instead of 1."""


@spec
class Muon:
    """Orthogonalized updates of matrices in blocks; AdamW for embeddings, heads, norms and biases.

    b = momentum b + (1 - momentum) g;  u = momentum b + (1 - momentum) g (Nesterov) or b
    w = (1 - lr weight_decay) w - lr s O(u),  O(u) the nearest (semi-)orthogonal matrix

    `scale` is s: "rms" 0.2 √max(rows, columns) (Liu et al., 2025) gives updates as large as AdamW's, so its learning
    rate and decay apply (here and in `rest`); "shape" √max(1, rows / columns) is Jordan's, with lr 0.02 and no decay.
    torch.optim.Muon has the same rule; ours can skip a step on the device, processes all matrices of one shape at once
    and, on a CPU, in float32. A sharded matrix is gathered for its step.
    """

    lr: NonNegative[float] = 1e-3
    momentum: Beta = 0.95
    nesterov: bool = True
    iterations: NonNegative[int] = 5
    scale: Literal["rms", "shape"] = "rms"
    weight_decay: NonNegative[float] = 0.1
    rest: AdamW | None = None  # None: the same lr and weight decay, betas (0.9, 0.95)

    @property
    def rest_spec(self) -> AdamW:
        """AdamW of the other parameters."""
        return self.rest or AdamW(lr=self.lr, betas=(0.9, 0.95), weight_decay=self.weight_decay)

    def build(self, groups: Sequence[ParameterGroup]) -> "OrthogonalizedMomentum":
        return OrthogonalizedMomentum(self, groups)

    def compute_scale(self, rows: int, columns: int) -> float:
        """Return the factor s on the learning rate of a matrix."""
        return 0.2 * math.sqrt(max(rows, columns)) if self.scale == "rms" else math.sqrt(max(1, rows / columns))


class OrthogonalizedMomentum(SkippableOptimizer):
    """The optimizer of `Muon`; state: `momentum` of matrices, AdamW's of the rest. It holds the groups of both."""

    spec: Muon
    updates_same_shapes = True

    def __init__(self, spec: Muon, groups: Sequence[ParameterGroup]) -> None:
        matrices = [group for group in groups if group.is_matrix]
        rest_groups = [group for group in groups if not group.is_matrix]
        if not matrices:
            raise UsageError("muon needs trainable matrices in blocks, got none; use adam_w")
        super().__init__(spec, matrices)
        self.rest_optimizer = spec.rest_spec.build(rest_groups) if rest_groups else None
        if self.rest_optimizer is not None:  # shared groups and state, so that schedules and checkpoints reach both
            self.param_groups.extend(self.rest_optimizer.param_groups)
            self.state.update(self.rest_optimizer.state)
            self.rest_optimizer.state = self.state

    def init_state(self, weight: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(weight)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        super().step()
        ok = get_step_condition(self)
        if self.rest_optimizer is None:
            return
        if ok is None:
            self.rest_optimizer.step()
        else:
            step_if(self.rest_optimizer, ok)

    def update(self, ok: Tensor | None, group: TorchGroup, weights: list[Tensor], gradients: list[Tensor]) -> None:
        momenta, momentum = [self.state[weight]["momentum"] for weight in weights], self.spec.momentum
        directions = new_momenta = torch._foreach_lerp(momenta, gradients, 1 - momentum)
        if self.spec.nesterov:
            directions = torch._foreach_lerp(gradients, new_momenta, momentum)
        updates = _orthogonalize_updates(list(directions), self.spec.iterations)
        new_weights = torch._foreach_mul(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(new_weights, updates, alpha=-group["lr"] * self.spec.compute_scale(*weights[0].shape))
        write_if(ok, momenta, new_momenta)
        write_if(ok, weights, new_weights)


def orthogonalize(matrices: Tensor, iterations: int, dtype: torch.dtype) -> Tensor:
    """Orthogonalize matrices [k, m, n] approximately, by matrix products: all singular values become close to 1."""
    alpha, b, c = QUINTIC_COEFFICIENTS
    x = matrices.to(dtype)
    is_wide = x.shape[-2] <= x.shape[-1]
    x = x if is_wide else x.mT
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=alpha)
    return x if is_wide else x.mT


def _orthogonalize_updates(updates: list[Tensor], iterations: int) -> list[Tensor]:
    """Orthogonalize updates of one shape; the results are sharded like the updates."""
    matrices = torch.stack([unshard(update) for update in updates])
    dtype = torch.bfloat16 if matrices.is_cuda else torch.float32
    orthogonal = orthogonalize(matrices, iterations, dtype).to(matrices.dtype)
    return [shard_like(matrix, update) for matrix, update in zip(orthogonal.unbind(0), updates, strict=True)]
