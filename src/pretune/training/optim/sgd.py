"""Stochastic gradient descent with momentum (Polyak, 1964)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from pretune.core.config import spec
from pretune.training.optim.checks import below_one, not_negative
from pretune.training.optim.conditional_step import chunks, gradients, settle, taken
from pretune.training.optim.groups import Group


@spec
class SGD:
    """g += weight_decay w;  b = momentum b + g;  w -= lr b

    Ours and not torch's fused one: that one, told to skip its very first step, goes on from memory nobody has set.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        not_negative(lr=self.lr, weight_decay=self.weight_decay)
        below_one(momentum=self.momentum)

    def build(self, groups: Sequence[Group]) -> "Descent":
        return Descent(self, groups)


class Descent(Optimizer):
    """The optimiser of `SGD`; state: `momentum`, where there is any."""

    _step_supports_amp_scaling = True

    def __init__(self, spec: SGD, groups: Sequence[Group]) -> None:
        described = [group.described(lr=spec.lr, weight_decay=spec.weight_decay) for group in groups]
        super().__init__(described, {"momentum": spec.momentum})
        for group in groups if spec.momentum else ():
            for weight in group.parameters:
                self.state[weight]["momentum"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step over all weights that have a gradient."""
        ok = taken(self)
        for group in self.param_groups:
            for weights in chunks(group):
                change = decayed(weights, group["weight_decay"])
                if group["momentum"]:
                    moving = [self.state[weight]["momentum"] for weight in weights]
                    change = list(torch._foreach_add(change, moving, alpha=group["momentum"]))
                    settle(ok, moving, change)
                settle(ok, weights, torch._foreach_sub(weights, change, alpha=group["lr"]))


def decayed(weights: Sequence[Tensor], weight_decay: float) -> list[Tensor]:
    """Gradients with that of the penalty added."""
    found = gradients(weights)
    return list(torch._foreach_add(found, list(weights), alpha=weight_decay)) if weight_decay else found
