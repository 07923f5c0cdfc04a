"""Gradual unfreezing (Howard and Ruder, 2018): the heads first, then one part more from above, and so on down.

step      0 …        1 epoch …      2 epochs …            (every=1.0, as in the paper)
trained   heads      + block 11     + block 10
"""

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.training.async_metrics import StepMetrics
from pretune.training.loop import Loop
from pretune.training.optim.groups import split_parts


@spec
class Epochs:
    """A part every so many epochs; None: as many as leave the second half of the run to the whole model."""

    every: float | None = None

    def __post_init__(self) -> None:
        if self.every is not None and not self.every > 0:
            raise UsageError(f"every {self.every:g} must be above 0: epochs between one part and the next")


@spec
class Plateau:
    """A part whenever so many evaluations in a row brought nothing better."""

    patience: int = 2

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise UsageError(f"patience {self.patience} must be at least 1: evaluations without anything better")


@spec
class Gradual:
    """The topmost part is trained at first, the others follow one by one from above (Howard and Ruder, 2018)."""

    when: Epochs | Plateau = Epochs()

    rate: ClassVar[float] = 6e-5  # a usual peak learning rate

    def select_parts(self, parts: list[str]) -> list[str]:
        """The topmost part: heads, where there are any."""
        return parts[-1:]

    def build_hook(self, model: nn.Module, *, epoch: float, steps: float | None = None) -> "UnfreezingHook":
        """What opens part after part in a loop whose epoch has so many steps; `steps` are those of the whole run.

        Make the optimiser's groups first, of all that will be trained; what is closed then gets no gradient, and the
        optimiser passes it over.
        """
        return UnfreezingHook(model, self, epoch, steps)


class UnfreezingHook:
    """A hook of the loop; `num_unfrozen` counts the parts that are trained beyond the topmost.

    What is frozen when it is made (by a method, say) stays frozen. `state` is what a checkpoint has to keep.
    """

    def __init__(self, model: nn.Module, spec: Gradual, epoch: float, steps: float | None = None) -> None:
        if not epoch > 0:
            raise UsageError(f"an epoch of {epoch:g} steps; it must have more than 0")
        self.spec, self.epoch, self.steps = spec, epoch, steps
        named = dict(model.named_parameters())
        free = {
            part: [named[name] for name in names if named[name].requires_grad]
            for part, names in split_parts(model).items()
        }
        self.parts = [(part, parameters) for part, parameters in free.items() if parameters]
        if not self.parts:
            raise UsageError("nothing is left to train: add a head, or freeze less")
        self.num_unfrozen, self.evals_without_improvement, self._last_eval_step = 0, 0, -1
        self.update_requires_grad()

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        """After every step."""
        before = self.num_unfrozen
        if isinstance(self.spec.when, Epochs):
            self.num_unfrozen = min(int(loop.state.step / self._compute_interval(self.spec.when)), len(self.parts) - 1)
        elif loop.state.judged != self._last_eval_step:
            self._last_eval_step = loop.state.judged
            self.evals_without_improvement = (
                0 if loop.state.best_step == loop.state.judged else self.evals_without_improvement + 1
            )
            if self.evals_without_improvement >= self.spec.when.patience and self.num_unfrozen < len(self.parts) - 1:
                self.num_unfrozen, self.evals_without_improvement = self.num_unfrozen + 1, 0
        if self.num_unfrozen != before:
            self.update_requires_grad()

    def _compute_interval(self, schedule: Epochs) -> float:
        """Steps from one part to the next."""
        if schedule.every is not None or self.steps is None:
            return (schedule.every or 1.0) * self.epoch
        return max(self.steps / 2 / max(len(self.parts) - 1, 1), 1.0)

    @property
    def state(self) -> tuple[int, int, int]:
        """How many parts were opened, evaluations since something was better, and the step of the last one."""
        return self.num_unfrozen, self.evals_without_improvement, self._last_eval_step

    def restore(self, state: tuple[int, int, int]) -> None:
        """Be where a run was that is resumed."""
        self.num_unfrozen, self.evals_without_improvement, self._last_eval_step = state
        self.update_requires_grad()

    def update_requires_grad(self) -> None:
        """Train the topmost part and those that were opened, freeze the others."""
        for above, (_, parameters) in enumerate(reversed(self.parts)):
            for parameter in parameters:
                parameter.requires_grad_(above <= self.num_unfrozen)
