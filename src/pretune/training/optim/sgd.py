"""Stochastic gradient descent: with momentum (Polyak, 1964), averaged (Polyak and Juditsky, 1992), and Adagrad."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from pretune.core.config import NonNegative, Positive, spec
from pretune.training.optim import Beta, ParameterGroup, SkippableOptimizer, TorchGroup, create_counter, write_if


@spec
class SGD:
    """SGD with momentum: g += weight_decay w;  b = momentum b + g;  w -= lr b.

    Not torch's: its fused kernel, the only one of its SGD that can skip a step on the device, has no rule for sharded
    weights, and continues from uninitialized memory if its very first step is skipped.
    """

    lr: NonNegative[float] = 0.1
    momentum: Beta = 0.0
    weight_decay: NonNegative[float] = 0.0

    def build(self, groups: Sequence[ParameterGroup]) -> "MomentumDescent":
        return MomentumDescent(self, groups)


def _add_decay(group: TorchGroup, weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    """Return the gradients with the weight decay (an L2 penalty)."""
    decay = group["weight_decay"]
    return [*torch._foreach_add(gradients, weights, alpha=decay)] if decay else gradients


class MomentumDescent(SkippableOptimizer):
    """The optimizer of `SGD`; state: `momentum` if it is not 0."""

    spec: SGD

    def init_state(self, weight: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(weight)} if self.spec.momentum else {}

    def update(self, ok: Tensor | None, group: TorchGroup, weights: list[Tensor], gradients: list[Tensor]) -> None:
        updates = _add_decay(group, weights, gradients)
        if self.spec.momentum:
            momenta = [self.state[weight]["momentum"] for weight in weights]
            updates = list(torch._foreach_add(updates, momenta, alpha=self.spec.momentum))
            write_if(ok, momenta, updates)
        write_if(ok, weights, torch._foreach_sub(weights, updates, alpha=group["lr"]))


@spec
class Adagrad:
    """Adagrad (Duchi et al., 2011): g += weight_decay w;  s += g^2;  w -= lr g / (sqrt(s) + eps).

    ELMo: lr 0.2, with s = 1 before the first step.
    """

    lr: NonNegative[float] = 0.01
    initial_accumulator: NonNegative[float] = 0.0
    eps: Positive[float] = 1e-10
    weight_decay: NonNegative[float] = 0.0

    def build(self, groups: Sequence[ParameterGroup]) -> "AdaptiveDescent":
        return AdaptiveDescent(self, groups)


class AdaptiveDescent(SkippableOptimizer):
    """The optimizer of `Adagrad`; state: `sum`, of squared gradients."""

    spec: Adagrad

    def init_state(self, weight: Tensor) -> dict[str, Tensor]:
        return {"sum": torch.full_like(weight, self.spec.initial_accumulator)}

    def update(self, ok: Tensor | None, group: TorchGroup, weights: list[Tensor], gradients: list[Tensor]) -> None:
        gradients = _add_decay(group, weights, gradients)
        sums = [self.state[weight]["sum"] for weight in weights]
        new_sums = torch._foreach_addcmul(sums, gradients, gradients)
        scales = torch._foreach_add(torch._foreach_sqrt(new_sums), self.spec.eps)
        write_if(ok, weights, torch._foreach_sub(weights, torch._foreach_div(gradients, scales), alpha=group["lr"]))
        write_if(ok, sums, new_sums)


@spec
class ASGD:
    """SGD and, after the trigger, an average of the weights, which is evaluated and saved.

    w -= lr (g + weight_decay w);  a += (w - a) / max(1, steps since the trigger - 1)

    NT-ASGD (Merity et al., 2018): averaging is triggered at the first evaluation whose validation loss is above the
    lowest of all evaluations but the last `nonmonotone_interval`. Until then the average is the weights. AWD-LSTM: lr
    30, weight decay 1.2e-6, gradients clipped to 0.25, an interval of 5.
    """

    lr: NonNegative[float] = 30.0
    weight_decay: NonNegative[float] = 1.2e-6
    nonmonotone_interval: NonNegative[int] = 5  # evaluations

    def can_trigger(self, evaluations: int) -> bool:
        """Return True if a run with this many evaluations, including the one at its end, can trigger averaging."""
        return evaluations > self.nonmonotone_interval + 2

    def build(self, groups: Sequence[ParameterGroup]) -> "AveragedDescent":
        return AveragedDescent(self, groups)


class AveragedDescent(SkippableOptimizer):
    """The optimizer of `ASGD`; state: `average`, and `since`, 0 until triggered and then counting from 1.

    `losses` are the validation losses up to the trigger.
    """

    def __init__(self, spec: ASGD, groups: Sequence[ParameterGroup]) -> None:
        super().__init__(spec, groups)
        self.interval = spec.nonmonotone_interval
        self.losses: list[float] = []
        self.is_triggered = False

    def init_state(self, weight: Tensor) -> dict[str, Tensor]:
        return {"since": create_counter(weight), "average": weight.detach().clone()}

    def observe(self, loss: float) -> bool:
        """Add a validation loss; returns True if it triggers averaging."""
        if self.is_triggered:
            return False
        earlier = self.losses[: max(len(self.losses) - self.interval, 0)]
        self.losses.append(loss if loss == loss else math.inf)  # NOTE: the minimum of NaN and a number may be either
        if not earlier or not loss > min(earlier):
            return False
        self.trigger()
        return True

    def trigger(self) -> None:
        """Start averaging; a no-op if already started."""
        self.is_triggered = True
        for state in self.state.values():
            state["since"].clamp_(min=1)

    @contextmanager
    def use_averages(self) -> Iterator[None]:
        """Swap in the averaged weights inside the block; `average` then holds the current weights."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def get_trigger_state(self) -> dict[str, Tensor]:
        """Return the state that belongs to no parameter, for a checkpoint."""
        return {"losses": torch.tensor(self.losses, dtype=torch.float64), "triggered": torch.tensor(self.is_triggered)}

    def load_trigger_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore the result of `get_trigger_state`."""
        self.losses, self.is_triggered = tensors["losses"].tolist(), bool(tensors["triggered"])

    def update(self, ok: Tensor | None, group: TorchGroup, weights: list[Tensor], gradients: list[Tensor]) -> None:
        new_weights = torch._foreach_sub(weights, _add_decay(group, weights, gradients), alpha=group["lr"])
        averages = [self.state[weight]["average"] for weight in weights]
        since = [self.state[weight]["since"] for weight in weights]
        new_averages = [
            average.lerp(weight, 1 / (count - 1).clamp(min=1))
            for average, weight, count in zip(averages, new_weights, since, strict=True)
        ]
        write_if(ok, averages, new_averages)
        write_if(ok, since, [count + (count > 0) for count in since])
        write_if(ok, weights, new_weights)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights and their averages."""
        for weight, state in self.state.items():
            weight_copy = weight.detach().clone()
            weight.copy_(state["average"])
            state["average"].copy_(weight_copy)
