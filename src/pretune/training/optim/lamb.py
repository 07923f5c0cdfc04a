"""LAMB: layer-wise adaptive moments for large batches (You et al., 2020)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pretune.core.config import NonNegative, spec
from pretune.training.optim import Beta, ParameterGroup, SkippableOptimizer, TorchGroup, init_moments, write_if

Tensors = tuple[Tensor, ...] | list[Tensor]


@spec
class Lamb:
    """Adam's update, scaled to the norm of each weight.

    r = m̂ / (√v̂ + eps) + weight_decay w;  w -= lr (|w| / |r|) r

    As in the authors' code, weights exempt from weight decay (norms, biases) take Adam's update unscaled. The paper:
    BERT in 76 minutes with lr 5e-3 / 2^1.5 at batch 4096 up to 5e-3 at 32768, betas (0.9, 0.999), eps 1e-6, decay 0.01.
    """

    lr: NonNegative[float] = 1.76e-3
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: NonNegative[float] = 1e-6
    weight_decay: NonNegative[float] = 0.01
    bias_correction: bool = True

    def build(self, groups: Sequence[ParameterGroup]) -> "LayerwiseMoments":
        return LayerwiseMoments(self, groups)


class LayerwiseMoments(SkippableOptimizer):
    """The optimizer of `Lamb`; state: `step`, `exp_avg`, `exp_avg_sq`."""

    spec: Lamb

    def init_state(self, weight: Tensor) -> dict[str, Tensor]:
        return init_moments(weight)

    def update(self, ok: Tensor | None, group: TorchGroup, weights: list[Tensor], gradients: list[Tensor]) -> None:
        steps, means, squares = (
            [self.state[weight][key] for weight in weights] for key in ("step", "exp_avg", "exp_avg_sq")
        )
        counts = torch._foreach_add(steps, 1)
        new_means = torch._foreach_lerp(means, gradients, 1 - self.spec.betas[0])
        new_squares = torch._foreach_mul(squares, self.spec.betas[1])
        torch._foreach_addcmul_(new_squares, gradients, gradients, 1 - self.spec.betas[1])
        update = self._compute_direction(new_means, new_squares, counts)
        if group["weight_decay"]:
            torch._foreach_add_(update, weights, alpha=group["weight_decay"])
        if group["has_decay"]:
            torch._foreach_mul_(update, _compute_trust_ratios(weights, update))
        write_if(ok, steps, counts)
        write_if(ok, means, new_means)
        write_if(ok, squares, new_squares)
        torch._foreach_mul_(update, -group["lr"])
        torch._foreach_add_(update, weights)
        write_if(ok, weights, update)

    def _compute_direction(self, mean: Tensors, square: Tensors, counts: Tensors) -> list[Tensor]:
        """Return Adam's update."""
        denominator = torch._foreach_sqrt(square)
        if not self.spec.bias_correction:
            torch._foreach_add_(denominator, self.spec.eps)
            return list(torch._foreach_div(mean, denominator))
        first_corrections, second_corrections = ([1 - beta**count for count in counts] for beta in self.spec.betas)
        torch._foreach_div_(denominator, torch._foreach_sqrt(second_corrections))
        torch._foreach_add_(denominator, self.spec.eps)
        update = torch._foreach_div(mean, denominator)
        torch._foreach_div_(update, first_corrections)
        return list(update)


def _compute_trust_ratios(weights: Tensors, update: Tensors) -> list[Tensor]:
    """Return |w| / |r|, and 1 where either is zero."""
    weight_norms, update_norms = torch._foreach_norm(weights), torch._foreach_norm(update)
    return [torch.where((w > 0) & (r > 0), w / r, 1.0) for w, r in zip(weight_norms, update_norms, strict=True)]
