"""Gradual unfreezing (Howard and Ruder, 2018): the heads first, then one part more from above, and so on down.

step      0 …        1 epoch …      2 epochs …            (every=1.0, as in the paper)
trained   heads      + block 11     + block 10
"""

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.training.async_metrics import Report
from pretune.training.loop import Loop
from pretune.training.optim.groups import parts


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

    def trained(self, parts: list[str]) -> list[str]:
        """The topmost part: heads, where there are any."""
        return parts[-1:]

    def hook(self, model: nn.Module, *, epoch: float, steps: float | None = None) -> "Unfreezing":
        """What opens part after part in a loop whose epoch has so many steps; `steps` are those of the whole run.

        Make the optimiser's groups first, of all that will be trained; what is closed then gets no gradient, and the
        optimiser passes it over.
        """
        return Unfreezing(model, self, epoch, steps)


class Unfreezing:
    """A hook of the loop; `opened` counts the parts that are trained beyond the topmost.

    What is frozen when it is made (by a method, say) stays frozen. `state` is what a checkpoint has to keep.
    """

    def __init__(self, model: nn.Module, spec: Gradual, epoch: float, steps: float | None = None) -> None:
        if not epoch > 0:
            raise UsageError(f"an epoch of {epoch:g} steps; it must have more than 0")
        self.spec, self.epoch, self.steps = spec, epoch, steps
        named = dict(model.named_parameters())
        free = {
            part: [named[name] for name in names if named[name].requires_grad] for part, names in parts(model).items()
        }
        self.parts = [(part, parameters) for part, parameters in free.items() if parameters]
        if not self.parts:
            raise UsageError("nothing is left to train: add a head, or freeze less")
        self.opened, self.stale, self._judged = 0, 0, -1
        self.settle()

    def __call__(self, loop: Loop, reports: Sequence[Report]) -> None:
        """After every step."""
        before = self.opened
        if isinstance(self.spec.when, Epochs):
            self.opened = min(int(loop.state.step / self._between(self.spec.when)), len(self.parts) - 1)
        elif loop.state.judged != self._judged:
            self._judged = loop.state.judged
            self.stale = 0 if loop.state.best_step == loop.state.judged else self.stale + 1
            if self.stale >= self.spec.when.patience and self.opened < len(self.parts) - 1:
                self.opened, self.stale = self.opened + 1, 0
        if self.opened != before:
            self.settle()

    def _between(self, when: Epochs) -> float:
        """Steps from one part to the next."""
        if when.every is not None or self.steps is None:
            return (when.every or 1.0) * self.epoch
        return max(self.steps / 2 / max(len(self.parts) - 1, 1), 1.0)

    @property
    def state(self) -> tuple[int, int, int]:
        """How many parts were opened, evaluations since something was better, and the step of the last one."""
        return self.opened, self.stale, self._judged

    def restore(self, state: tuple[int, int, int]) -> None:
        """Be where a run was that is resumed."""
        self.opened, self.stale, self._judged = state
        self.settle()

    def settle(self) -> None:
        """Train the topmost part and those that were opened, freeze the others."""
        for above, (_, parameters) in enumerate(reversed(self.parts)):
            for parameter in parameters:
                parameter.requires_grad_(above <= self.opened)
