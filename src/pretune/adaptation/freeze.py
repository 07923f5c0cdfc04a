"""Freezing strategies: full fine-tuning, frozen body, first k layers frozen, last layers only.

A strategy selects parts of a model, ordered bottom up as `training.optim.split_parts` returns them: embeddings,
blocks, heads. Learning rates per part are the `lr_factor` argument of `build_parameter_groups`. Strategies, rates and
methods can be combined:

    freeze(model, FirstFrozen(layers=6))
    groups = build_parameter_groups(model, lr_factor=Decay(factor=0.9))

Gradual unfreezing is a hook of the training loop (`gradual_unfreezing.py`) and works with any of these.

In an encoder-decoder the encoder's blocks are below the decoder's.
"""

from typing import Annotated, ClassVar, Protocol

from torch import nn

from pretune.core.config import Gt, Le, NonNegative, Positive, spec
from pretune.core.errors import UsageError
from pretune.training.optim.base import EMBEDDINGS, HEADS, split_parts


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
        return [part for part in parts if part == HEADS]


@spec
class FirstFrozen:
    """Freeze the embeddings and the lowest `layers` blocks (Lee et al., 2019)."""

    layers: NonNegative[int]

    def select_parts(self, parts: list[str]) -> list[str]:
        """Return the parts above the frozen blocks."""
        blocks = [part for part in parts if part not in (EMBEDDINGS, HEADS)]
        if self.layers > len(blocks):
            raise UsageError(f"layers must be <= {len(blocks)} (blocks of this model), got {self.layers}")
        frozen = {EMBEDDINGS, *blocks[: self.layers]}
        return [part for part in parts if part not in frozen]


@spec
class LastOnly:
    """Train only the last `layers` blocks and the heads."""

    layers: Positive[int] = 1

    def select_parts(self, parts: list[str]) -> list[str]:
        """Return the last blocks and the heads."""
        blocks = [part for part in parts if part not in (EMBEDDINGS, HEADS)]
        return [part for part in parts if part in blocks[-self.layers :] or part == HEADS]


def freeze(model: nn.Module, strategy: FreezeStrategy) -> tuple[str, ...]:
    """Freeze all parameters outside the parts that a strategy trains; return the names of the trained ones.

    Parameters that are frozen already stay frozen: apply a PEFT method first.
    """
    parts = split_parts(model)
    trainable_names = {name for part in strategy.select_parts(list(parts)) for name in parts[part]}
    trained_names = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in trainable_names)
        if parameter.requires_grad:
            trained_names.append(name)
    if not trained_names:
        raise UsageError(
            "no trainable parameters left: freeze less, or add a head (a model that generates its answers has none: "
            "--set tune.text_to_text=false)"
        )
    return tuple(trained_names)


@spec
class Decay:
    """Layer-wise learning rate decay: each part's rate is `factor` times that of the part above it.

    ULMFiT's discriminative rates are a factor of 1 / 2.6 (Howard and Ruder, 2018); ELECTRA's 0.8 to 0.9.
    """

    factor: Annotated[float, Gt(0), Le(1)]

    def __call__(self, parts_above: int) -> float:
        """Return the factor on the learning rate of a part with `parts_above` parts above it."""
        return self.factor**parts_above
