"""Layer-wise adaptive moments for large batches (You et al., 2020)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from pretune.core.config import spec
from pretune.training.optim.checks import check_below_one, check_not_negative
from pretune.training.optim.conditional_step import (
    create_counter,
    get_gradients,
    get_step_condition,
    iter_chunks,
    write_if,
)
from pretune.training.optim.groups import ParameterGroup

Tensors = tuple[Tensor, ...] | list[Tensor]


@spec
class Lamb:
    """Adam's direction, as long for each weight as the weight itself.

    r = m̂ / (√v̂ + eps) + weight_decay w;  w -= lr (|w| / |r|) r

    As in the authors' code, what is exempt from weight decay (norms, biases) takes Adam's step as it is. The paper:
    BERT in 76 minutes with lr 5e-3 / 2^1.5 at batch 4096 up to 5e-3 at 32768, betas (0.9, 0.999), eps 1e-6, decay 0.01.
    """

    lr: float = 1.76e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01
    bias_correction: bool = True

    def __post_init__(self) -> None:
        check_not_negative(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        check_below_one(**{f"betas.{i}": beta for i, beta in enumerate(self.betas)})

    def build(self, groups: Sequence[ParameterGroup]) -> "LayerwiseMoments":
        return LayerwiseMoments(self, groups)


class LayerwiseMoments(Optimizer):
    """The optimiser of `Lamb`; state: `step`, `exp_avg`, `exp_avg_sq`."""

    _step_supports_amp_scaling = True

    def __init__(self, spec: Lamb, groups: Sequence[ParameterGroup]) -> None:
        described = [
            group.to_param_group(lr=spec.lr, weight_decay=spec.weight_decay) | {"trust": group.has_decay}
            for group in groups
        ]
        super().__init__(described, {})
        self.spec = spec
        for group in groups:
            for weight in group.parameters:
                self.state[weight] = {
                    "step": create_counter(weight),
                    "exp_avg": torch.zeros_like(weight),
                    "exp_avg_sq": torch.zeros_like(weight),
                }

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step over all weights that have a gradient."""
        ok = get_step_condition(self)
        for group in self.param_groups:
            for weights in iter_chunks(group):
                steps, means, squares = (
                    [self.state[weight][key] for weight in weights] for key in ("step", "exp_avg", "exp_avg_sq")
                )
                slopes = get_gradients(weights)
                counts = torch._foreach_add(steps, 1)
                mean = torch._foreach_lerp(means, slopes, 1 - self.spec.betas[0])
                square = torch._foreach_mul(squares, self.spec.betas[1])
                torch._foreach_addcmul_(square, slopes, slopes, 1 - self.spec.betas[1])
                change = self._compute_direction(mean, square, counts)
                if group["weight_decay"]:
                    torch._foreach_add_(change, weights, alpha=group["weight_decay"])
                if group["trust"]:
                    torch._foreach_mul_(change, _compute_trust_ratios(weights, change))
                write_if(ok, steps, counts)
                write_if(ok, means, mean)
                write_if(ok, squares, square)
                torch._foreach_mul_(change, -group["lr"])
                torch._foreach_add_(change, weights)
                write_if(ok, weights, change)

    def _compute_direction(self, mean: Tensors, square: Tensors, counts: Tensors) -> list[Tensor]:
        """Adam's."""
        spread = torch._foreach_sqrt(square)
        if not self.spec.bias_correction:
            torch._foreach_add_(spread, self.spec.eps)
            return list(torch._foreach_div(mean, spread))
        first, second = ([1 - beta**count for count in counts] for beta in self.spec.betas)
        torch._foreach_div_(spread, torch._foreach_sqrt(second))
        torch._foreach_add_(spread, self.spec.eps)
        change = torch._foreach_div(mean, spread)
        torch._foreach_div_(change, first)
        return list(change)


def _compute_trust_ratios(weights: Tensors, change: Tensors) -> list[Tensor]:
    """|w| / |r|, and 1 where either is zero."""
    longs, rs = torch._foreach_norm(weights), torch._foreach_norm(change)
    return [torch.where((w > 0) & (r > 0), w / r, 1.0) for w, r in zip(longs, rs, strict=True)]
