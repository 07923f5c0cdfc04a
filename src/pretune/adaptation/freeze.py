"""Which part of a model is trained, and when: full, frozen, first k frozen, last only, gradually unfrozen.

All are a choice of parts, as `train.optim.groups.split_parts` tells them from below to above: embeddings, block after block,
heads. Rates that differ by part are a `rate` for `parameter_groups`. Choices, rates and methods combine freely:

    freeze(model, FirstFrozen(layers=6))
    groups = parameter_groups(model, rate=Decay(factor=0.9))

Gradual unfreezing is a hook of the loop (`unfreeze.py`), layered over any of these.

In an encoder-decoder the encoder's blocks lie below the decoder's.
"""

from typing import ClassVar, Protocol

from torch import nn

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.training.optim.groups import EMBEDDINGS, HEADS, split_parts


class FreezeStrategy(Protocol):
    """A choice of parts."""

    def select_parts(self, parts: list[str]) -> list[str]:
        """Of a model's parts, from below to above, those that are trained (from the start)."""


@spec
class Full:
    """Everything is trained."""

    rate: ClassVar[float] = 3e-5  # a usual peak learning rate

    def select_parts(self, parts: list[str]) -> list[str]:
        """All parts."""
        return parts


@spec
class Frozen:
    """Only heads are trained: the model gives features."""

    rate: ClassVar[float] = 1e-2

    def select_parts(self, parts: list[str]) -> list[str]:
        """The heads."""
        return [part for part in parts if part == HEADS]


@spec
class FirstFrozen:
    """The embeddings and the lowest `layers` blocks are frozen (Lee et al., 2019)."""

    layers: int

    def __post_init__(self) -> None:
        if self.layers < 0:
            raise UsageError(f"layers {self.layers} must be at least 0: how many of the lowest blocks are frozen")

    def select_parts(self, parts: list[str]) -> list[str]:
        """What lies above."""
        blocks = [part for part in parts if part not in (EMBEDDINGS, HEADS)]
        if self.layers > len(blocks):
            raise UsageError(f"layers {self.layers}: this model has {len(blocks)} blocks to freeze")
        frozen = {EMBEDDINGS, *blocks[: self.layers]}
        return [part for part in parts if part not in frozen]


@spec
class LastOnly:
    """The topmost blocks and the heads are trained ("chain-thaw" and probing have such a step)."""

    layers: int = 1

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise UsageError(f"layers {self.layers} must be at least 1: how many of the topmost blocks are trained")

    def select_parts(self, parts: list[str]) -> list[str]:
        """The last of the blocks, and the heads."""
        blocks = [part for part in parts if part not in (EMBEDDINGS, HEADS)]
        return [part for part in parts if part in blocks[-self.layers :] or part == HEADS]


def freeze(model: nn.Module, strategy: FreezeStrategy) -> tuple[str, ...]:
    """Freeze a model's parameters but for those of the parts that a strategy trains: the names of these.

    What a method has frozen stays frozen: apply the method first.
    """
    divided = split_parts(model)
    kept = {name for part in strategy.select_parts(list(divided)) for name in divided[part]}
    trained = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in kept)
        if parameter.requires_grad:
            trained.append(name)
    if not trained:
        raise UsageError(
            "nothing is left to train: freeze less, or add a head (a model that writes its answers has none: "
            "--set tune.text=false)"
        )
    return tuple(trained)


@spec
class Decay:
    """Layer-wise rates: every part learns `factor` times as fast as the one above it.

    ULMFiT's discriminative rates are a factor of 1 / 2.6 (Howard and Ruder, 2018); ELECTRA's 0.8 to 0.9.
    """

    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise UsageError(f"factor {self.factor:g} must be above 0 and at most 1: the rate of a part over the next")

    def __call__(self, parts_above: int) -> float:
        """The factor on the learning rate of a part with so many above it."""
        return self.factor**parts_above
