"""Freezing strategies: full fine-tuning, frozen body, first k layers frozen, last layers only, gradual unfreezing.

A strategy selects parts of a model, ordered bottom up as `training.optim.split_parts` returns them: embeddings,
blocks, heads. Learning rates per part are the `lr_factor` argument of `build_parameter_groups`. Strategies, rates and
methods can be combined:

    freeze(model, FirstFrozen(layers=6))
    groups = build_parameter_groups(model, lr_factor=Decay(factor=0.9))

Gradual unfreezing (Howard and Ruder, 2018) is a hook of the training loop and works with any of these.

In an encoder-decoder the encoder's blocks are below the decoder's.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Protocol

from torch import nn

from pretune.core.config import Gt, Le, NonNegative, Positive, spec
from pretune.core.errors import UsageError
from pretune.training.loop import Loop
from pretune.training.optim import EMBEDDINGS_PART, HEADS_PART, list_trained_names, split_parts
from pretune.training.step import StepMetrics


class FreezeStrategy(Protocol):
    """A selection of the parts that are trained."""

    def select_parts(self, parts: list[str]) -> list[str]:
        """Return the parts to train from the start; `parts` are ordered bottom up."""


@spec
class Full:
    """Train all weights."""

    rate: ClassVar[float] = 3e-5  # default peak learning rate

    def select_parts(self, parts: list[str]) -> list[str]:
        """Return all parts."""
        return parts


@spec
class Frozen:
    """Train only the heads: the model is a feature extractor."""

    rate: ClassVar[float] = 1e-2

    def select_parts(self, parts: list[str]) -> list[str]:
        """Return the heads."""
        return [part for part in parts if part == HEADS_PART]


@spec
class FirstFrozen:
    """Freeze the embeddings and the lowest `layers` blocks (Lee et al., 2019)."""

    layers: NonNegative[int]

    def select_parts(self, parts: list[str]) -> list[str]:
        """Return the parts above the frozen blocks."""
        blocks = [part for part in parts if part not in (EMBEDDINGS_PART, HEADS_PART)]
        if self.layers > len(blocks):
            raise UsageError(f"layers must be <= {len(blocks)} (blocks of this model), got {self.layers}")
        frozen = {EMBEDDINGS_PART, *blocks[: self.layers]}
        return [part for part in parts if part not in frozen]


@spec
class LastOnly:
    """Train only the last `layers` blocks and the heads."""

    layers: Positive[int] = 1

    def select_parts(self, parts: list[str]) -> list[str]:
        """Return the last blocks and the heads."""
        blocks = [part for part in parts if part not in (EMBEDDINGS_PART, HEADS_PART)]
        return [part for part in parts if part in blocks[-self.layers :] or part == HEADS_PART]


def freeze(model: nn.Module, strategy: FreezeStrategy) -> tuple[str, ...]:
    """Freeze all parameters outside the parts that a strategy trains; return the names of the trained ones.

    Parameters that are frozen already stay frozen: apply a PEFT method first.
    """
    parts = split_parts(model)
    trainable_names = {name for part in strategy.select_parts(list(parts)) for name in parts[part]}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in trainable_names)
    trained_names = list_trained_names(model)
    if not trained_names:
        raise UsageError(
            "no trainable parameters left: freeze less, or add a head (a model that generates its answers has none: "
            "--set tune.text_to_text=false)"
        )
    return trained_names


@spec
class Decay:
    """Layer-wise learning rate decay: each part's rate is `factor` times that of the part above it.

    ULMFiT's discriminative rates are a factor of 1 / 2.6 (Howard and Ruder, 2018); ELECTRA's 0.8 to 0.9.
    """

    factor: Annotated[float, Gt(0), Le(1)]

    def __call__(self, parts_above: int) -> float:
        """Return the factor on the learning rate of a part with `parts_above` parts above it."""
        return self.factor**parts_above


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
            is_best = loop.state.best_step == loop.state.last_eval_step
            self.evals_without_improvement = 0 if is_best else self.evals_without_improvement + 1
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
