"""Averaged stochastic gradient descent (Polyak and Juditsky, 1992), begun when a caller says so."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.optim import Optimizer

from pretune.core.config import spec
from pretune.train.optim.groups import Group
from pretune.train.optim.ranges import not_negative
from pretune.train.optim.sgd import decayed
from pretune.train.optim.stepping import chunks, counter, settle, taken


@spec
class ASGD:
    """Plain descent and, from `trigger()` on, the mean of the weights it passes, which is what is evaluated.

    w -= lr (g + weight_decay w);  a += (w - a) / max(1, steps since the trigger - 1)

    AWD-LSTM (Merity et al., 2018): lr 30, weight decay 1.2e-6, gradients clipped to 0.25, averaging from the first time
    that the validation loss is no better than five evaluations before. Until then the average is the weights.
    """

    lr: float = 30.0
    weight_decay: float = 1.2e-6

    def __post_init__(self) -> None:
        not_negative(lr=self.lr, weight_decay=self.weight_decay)

    def build(self, groups: Sequence[Group]) -> "AveragedDescent":
        return AveragedDescent(self, groups)


class AveragedDescent(Optimizer):
    """The optimiser of `ASGD`; state: `average`, and `since`, which is 0 until triggered and then counts from 1."""

    _step_supports_amp_scaling = True

    def __init__(self, spec: ASGD, groups: Sequence[Group]) -> None:
        super().__init__([group.described(lr=spec.lr, weight_decay=spec.weight_decay) for group in groups], {})
        for group in groups:
            for weight in group.parameters:
                self.state[weight] = {"since": counter(weight), "average": weight.detach().clone()}

    def trigger(self) -> None:
        """Begin to average; where that has begun, nothing happens."""
        for state in self.state.values():
            state["since"].clamp_(min=1)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step over all weights that have a gradient."""
        ok = taken(self)
        for group in self.param_groups:
            for weights in chunks(group):
                change = decayed(weights, group["weight_decay"])
                new = torch._foreach_sub(weights, change, alpha=group["lr"])
                averages = [self.state[weight]["average"] for weight in weights]
                since = [self.state[weight]["since"] for weight in weights]
                shares = [1 / (count - 1).clamp(min=1) for count in since]
                settle(ok, averages, [a.lerp(w, share) for a, w, share in zip(averages, new, shares, strict=True)])
                settle(ok, since, [count + (count > 0) for count in since])
                settle(ok, weights, new)

    @torch.no_grad()
    def _swap(self) -> None:
        for weight, state in self.state.items():
            kept = weight.detach().clone()
            weight.copy_(state["average"])
            state["average"].copy_(kept)
