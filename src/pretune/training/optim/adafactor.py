"""Adafactor: adaptive learning rates with sublinear memory (Shazeer and Stern, 2018)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pretune.core.config import NonNegative, Positive, spec
from pretune.training.distributed import unshard
from pretune.training.optim import ParameterGroup, SkippableOptimizer, TorchGroup, create_counter, write_if


@spec
class Adafactor:
    """Adam with the second moments of a matrix factored into row and column means, and without momentum.

    b = 1 - steps^-decay;  R = b R + (1 - b) mean_rows(g² + eps_0);  C likewise;  V = R C / mean(R)
    u = g / √V;  u /= max(1, rms(u) / clip);  w -= lr max(eps_1, rms(w)) u        (without `scale_parameter`: w -= lr u)

    T5: lr 0.01 under `InverseSquareRoot(hold=10_000)` for pre-training, which is the paper's "relative step"
    min(0.01, 1 / √steps), and a constant 0.001 for fine-tuning; scaled, decay 0.8, clip 1.
    """

    lr: NonNegative[float] = 1e-2
    decay: Positive[float] = 0.8
    clip: Positive[float] = 1.0
    eps: tuple[Positive[float], Positive[float]] = (1e-30, 1e-3)
    weight_decay: NonNegative[float] = 0.0
    factor_moments: bool = True  # False: the second moment of every weight, as in Adam
    scale_parameter: bool = True  # learning rates are relative to the RMS of each weight

    def build(self, groups: Sequence[ParameterGroup]) -> "FactoredMoments":
        return FactoredMoments(self, groups)


class FactoredMoments(SkippableOptimizer):
    """The optimizer of `Adafactor`; state: `step`, and `rows` and `columns` of matrices or `squares` of the rest.

    Weights of the same shape are stacked into one tensor [k, …].
    """

    updates_same_shapes = True

    spec: Adafactor

    def init_state(self, weight: Tensor) -> dict[str, Tensor]:
        squares = torch.zeros_like(weight).detach()
        if self.spec.factor_moments and weight.ndim >= 2:
            return {"step": create_counter(weight), "rows": squares.mean(-1), "columns": squares.mean(-2)}
        return {"step": create_counter(weight), "squares": squares}

    def update(self, ok: Tensor | None, group: TorchGroup, weights: list[Tensor], gradients: list[Tensor]) -> None:
        if isinstance(weights[0], DTensor):
            # NOTE: sharded weights one at a time: stacking them would move them between devices.
            for weight, gradient in zip(weights, gradients, strict=True):
                self._update_stack(ok, group, [weight], gradient.unsqueeze(0))
        else:
            self._update_stack(ok, group, weights, _stack(gradients))

    def _update_stack(self, ok: Tensor | None, group: TorchGroup, weights: list[Tensor], gradients: Tensor) -> None:
        states = [self.state[weight] for weight in weights]
        counts = torch.stack([state["step"] for state in states]) + 1
        new_moments, update = self._update_moments(states, gradients, counts)
        sizes = self._compute_sizes(weights) if self.spec.scale_parameter else torch.ones_like(counts)
        rates: Tensor = group["lr"] * sizes
        new_weights = torch._foreach_sub(weights, _unstack(update.mul_(_expand_to(rates, update))))
        if group["weight_decay"]:
            decays = _unstack(rates * group["weight_decay"])
            new_weights = torch._foreach_sub(new_weights, [w * decay for w, decay in zip(weights, decays, strict=True)])
        for key, values in new_moments.items():
            write_if(ok, [state[key] for state in states], _unstack(values))
        write_if(ok, [state["step"] for state in states], _unstack(counts))
        write_if(ok, weights, new_weights)

    def _update_moments(self, states: list[Any], gradients: Tensor, counts: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the updated moments and the clipped update."""
        squares = gradients.square().add_(self.spec.eps[0])
        betas = 1 - counts**-self.spec.decay
        dims = {"rows": -1, "columns": -2} if "rows" in states[0] else {"squares": None}
        new_moments = {}
        for key, dim in dims.items():
            old, current = _stack([state[key] for state in states]), squares if dim is None else squares.mean(dim)
            beta = _expand_to(betas, current)
            new_moments[key] = old * beta + current * (1 - beta)
        if "rows" in new_moments:
            rows, columns = new_moments["rows"], new_moments["columns"]
            update = gradients * (rows / rows.mean(-1, keepdim=True)).rsqrt()[..., None]
            update.mul_(columns.rsqrt()[..., None, :])
        else:
            update = new_moments["squares"].rsqrt().mul_(gradients)
        return new_moments, update.div_(_expand_to((_compute_rms(update) / self.spec.clip).clamp(min=1), update))

    def _compute_sizes(self, weights: list[Tensor]) -> Tensor:
        """Return the root mean square [k] of each weight."""
        norms = torch.stack([unshard(norm) for norm in torch._foreach_norm(weights)])
        return norms.div(math.sqrt(weights[0].numel())).clamp(min=self.spec.eps[1])


def _compute_rms(values: Tensor) -> Tensor:
    """Return the root mean squares [k] of [k, …]."""
    if values.ndim == 1:
        return values.abs()
    norms = torch.linalg.vector_norm(values, dim=tuple(range(1, values.ndim)))
    return unshard(norms).div(math.sqrt(values[0].numel()))


def _stack(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)) if len(values) > 1 else values[0].unsqueeze(0)


def _unstack(values: Tensor) -> list[Tensor]:
    return list(values.unbind(0)) if values.shape[0] > 1 else [values.squeeze(0)]


def _expand_to(numbers: Tensor, values: Tensor) -> Tensor:
    """View [k] as [k, 1, …], to be multiplied with [k, …]."""
    return numbers.view(-1, *[1] * (values.ndim - 1))
