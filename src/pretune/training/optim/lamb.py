"""Layer-wise adaptive moments for large batches (You et al., 2020)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from pretune.core.config import spec
from pretune.training.optim.checks import below_one, not_negative
from pretune.training.optim.conditional_step import chunks, counter, gradients, settle, taken
from pretune.training.optim.groups import Group

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
        not_negative(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        below_one(**{f"betas.{i}": beta for i, beta in enumerate(self.betas)})

    def build(self, groups: Sequence[Group]) -> "LayerwiseMoments":
        return LayerwiseMoments(self, groups)


class LayerwiseMoments(Optimizer):
    """The optimiser of `Lamb`; state: `step`, `exp_avg`, `exp_avg_sq`."""

    _step_supports_amp_scaling = True

    def __init__(self, spec: Lamb, groups: Sequence[Group]) -> None:
        described = [
            group.described(lr=spec.lr, weight_decay=spec.weight_decay) | {"trust": group.decay} for group in groups
        ]
        super().__init__(described, {})
        self.spec = spec
        for group in groups:
            for weight in group.parameters:
                self.state[weight] = {
                    "step": counter(weight),
                    "exp_avg": torch.zeros_like(weight),
                    "exp_avg_sq": torch.zeros_like(weight),
                }

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step over all weights that have a gradient."""
        ok = taken(self)
        for group in self.param_groups:
            for weights in chunks(group):
                steps, means, squares = (
                    [self.state[weight][key] for weight in weights] for key in ("step", "exp_avg", "exp_avg_sq")
                )
                slopes = gradients(weights)
                counts = torch._foreach_add(steps, 1)
                mean = torch._foreach_lerp(means, slopes, 1 - self.spec.betas[0])
                square = torch._foreach_mul(squares, self.spec.betas[1])
                torch._foreach_addcmul_(square, slopes, slopes, 1 - self.spec.betas[1])
                change = self._direction(mean, square, counts)
                if group["weight_decay"]:
                    torch._foreach_add_(change, weights, alpha=group["weight_decay"])
                if group["trust"]:
                    torch._foreach_mul_(change, _trust(weights, change))
                settle(ok, steps, counts)
                settle(ok, means, mean)
                settle(ok, squares, square)
                torch._foreach_mul_(change, -group["lr"])
                torch._foreach_add_(change, weights)
                settle(ok, weights, change)

    def _direction(self, mean: Tensors, square: Tensors, counts: Tensors) -> list[Tensor]:
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


def _trust(weights: Tensors, change: Tensors) -> list[Tensor]:
    """|w| / |r|, and 1 where either is zero."""
    longs, rs = torch._foreach_norm(weights), torch._foreach_norm(change)
    return [torch.where((w > 0) & (r > 0), w / r, 1.0) for w, r in zip(longs, rs, strict=True)]
