"""Gradual unfreezing (Howard and Ruder, 2018): train the heads first, then unfreeze one part after the other, top down.

step      0 …        1 epoch …      2 epochs …            (every=1.0, as in the paper)
trained   heads      + block 11     + block 10
"""

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from pretune.core.config import Positive, spec
from pretune.core.errors import UsageError
from pretune.training.loop import Loop
from pretune.training.optim.base import split_parts
from pretune.training.step import StepMetrics


@spec
class Epochs:
    """Unfreeze a part every `every` epochs; None: at intervals that leave the second half of the run to all parts."""

    every: Positive[float] | None = None


@spec
class Plateau:
    """Unfreeze a part after `patience` evaluations without improvement."""

    patience: Positive[int] = 2


@spec
class Gradual:
    """Train the top part first and unfreeze the others one by one, top down (Howard and Ruder, 2018)."""

    when: Epochs | Plateau = Epochs()

    rate: ClassVar[float] = 6e-5  # default peak learning rate

    def select_parts(self, parts: list[str]) -> list[str]:
        """Return the top part: the heads, if there are any."""
        return parts[-1:]

    def build_hook(self, model: nn.Module, *, epoch: float, steps: float | None = None) -> "UnfreezingHook":
        """Return the hook that unfreezes the parts; `epoch` and `steps` are the steps of an epoch and of the whole run.

        Build the optimizer's groups first, over all parameters that will be trained: frozen ones get no gradient, and
        the optimizer skips them.
        """
        return UnfreezingHook(model, self, epoch, steps)


class UnfreezingHook:
    """Hook of the training loop; `num_unfrozen` counts the trained parts below the top one.

    Parameters that are frozen when the hook is built (by a method, say) stay frozen. `state` belongs into checkpoints.
    """

    def __init__(self, model: nn.Module, spec: Gradual, epoch: float, steps: float | None = None) -> None:
        if not epoch > 0:
            raise UsageError(f"epoch (steps per epoch) must be > 0, got {epoch:g}")
        self.spec, self.epoch, self.steps = spec, epoch, steps
        parameters_by_name = dict(model.named_parameters())
        trainable = {
            part: [parameters_by_name[name] for name in names if parameters_by_name[name].requires_grad]
            for part, names in split_parts(model).items()
        }
        self.parts = [(part, parameters) for part, parameters in trainable.items() if parameters]
        if not self.parts:
            raise UsageError("no trainable parameters left: add a head, or freeze less")
        self.num_unfrozen, self.evals_without_improvement, self._last_eval_step = 0, 0, -1
        self.update_requires_grad()

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        """Unfreeze the parts that are due; the loop calls this after every step."""
        previous = self.num_unfrozen
        if isinstance(self.spec.when, Epochs):
            self.num_unfrozen = min(int(loop.state.step / self._compute_interval(self.spec.when)), len(self.parts) - 1)
        elif loop.state.last_eval_step != self._last_eval_step:
            self._last_eval_step = loop.state.last_eval_step
            self.evals_without_improvement = (
                0 if loop.state.best_step == loop.state.last_eval_step else self.evals_without_improvement + 1
            )
            if self.evals_without_improvement >= self.spec.when.patience and self.num_unfrozen < len(self.parts) - 1:
                self.num_unfrozen, self.evals_without_improvement = self.num_unfrozen + 1, 0
        if self.num_unfrozen != previous:
            self.update_requires_grad()

    def _compute_interval(self, schedule: Epochs) -> float:
        """Return the steps between two parts."""
        if schedule.every is not None or self.steps is None:
            return (schedule.every or 1.0) * self.epoch
        return max(self.steps / 2 / max(len(self.parts) - 1, 1), 1.0)

    @property
    def state(self) -> tuple[int, int, int]:
        """Number of unfrozen parts, evaluations without improvement, and step of the last evaluation."""
        return self.num_unfrozen, self.evals_without_improvement, self._last_eval_step

    def restore(self, state: tuple[int, int, int]) -> None:
        """Restore the state of a run that is resumed."""
        self.num_unfrozen, self.evals_without_improvement, self._last_eval_step = state
        self.update_requires_grad()

    def update_requires_grad(self) -> None:
        """Set `requires_grad` on the top part and the unfrozen ones, clear it on the others."""
        for depth_from_top, (_, parameters) in enumerate(reversed(self.parts)):
            for parameter in parameters:
                parameter.requires_grad_(depth_from_top <= self.num_unfrozen)
