"""Stochastic gradient descent with momentum (Polyak, 1964)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from pretune.core.config import spec
from pretune.training.optim.checks import check_below_one, check_not_negative
from pretune.training.optim.conditional_step import get_gradients, get_step_condition, iter_chunks, write_if
from pretune.training.optim.groups import ParameterGroup


@spec
class SGD:
    """SGD with momentum: g += weight_decay w;  b = momentum b + g;  w -= lr b.

    Not torch's fused kernel: if its very first step is skipped, it continues from uninitialized memory.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(lr=self.lr, weight_decay=self.weight_decay)
        check_below_one(momentum=self.momentum)

    def build(self, groups: Sequence[ParameterGroup]) -> "MomentumDescent":
        return MomentumDescent(self, groups)


class MomentumDescent(Optimizer):
    """The optimizer of `SGD`; state: `momentum` if it is not 0."""

    _step_supports_amp_scaling = True

    def __init__(self, spec: SGD, groups: Sequence[ParameterGroup]) -> None:
        param_groups = [group.to_param_group(lr=spec.lr, weight_decay=spec.weight_decay) for group in groups]
        super().__init__(param_groups, {"momentum": spec.momentum})
        for group in groups if spec.momentum else ():
            for weight in group.parameters:
                self.state[weight]["momentum"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        ok = get_step_condition(self)
        for group in self.param_groups:
            for weights in iter_chunks(group):
                updates = add_weight_decay(weights, group["weight_decay"])
                if group["momentum"]:
                    momenta = [self.state[weight]["momentum"] for weight in weights]
                    updates = list(torch._foreach_add(updates, momenta, alpha=group["momentum"]))
                    write_if(ok, momenta, updates)
                write_if(ok, weights, torch._foreach_sub(weights, updates, alpha=group["lr"]))


def add_weight_decay(weights: Sequence[Tensor], weight_decay: float) -> list[Tensor]:
    """Return the gradients, with weight decay (an L2 penalty) added."""
    gradients = get_gradients(weights)
    return list(torch._foreach_add(gradients, list(weights), alpha=weight_decay)) if weight_decay else gradients
