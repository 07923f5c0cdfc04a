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
    """g += weight_decay w;  b = momentum b + g;  w -= lr b

    Ours and not torch's fused one: that one, told to skip its very first step, goes on from memory nobody has set.
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
    """The optimiser of `SGD`; state: `momentum`, where there is any."""

    _step_supports_amp_scaling = True

    def __init__(self, spec: SGD, groups: Sequence[ParameterGroup]) -> None:
        described = [group.to_param_group(lr=spec.lr, weight_decay=spec.weight_decay) for group in groups]
        super().__init__(described, {"momentum": spec.momentum})
        for group in groups if spec.momentum else ():
            for weight in group.parameters:
                self.state[weight]["momentum"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step over all weights that have a gradient."""
        ok = get_step_condition(self)
        for group in self.param_groups:
            for weights in iter_chunks(group):
                change = add_weight_decay(weights, group["weight_decay"])
                if group["momentum"]:
                    moving = [self.state[weight]["momentum"] for weight in weights]
                    change = list(torch._foreach_add(change, moving, alpha=group["momentum"]))
                    write_if(ok, moving, change)
                write_if(ok, weights, torch._foreach_sub(weights, change, alpha=group["lr"]))


def add_weight_decay(weights: Sequence[Tensor], weight_decay: float) -> list[Tensor]:
    """Gradients with that of the penalty added."""
    found = get_gradients(weights)
    return list(torch._foreach_add(found, list(weights), alpha=weight_decay)) if weight_decay else found
