"""IA3 (Liu et al., 2022): learned vectors rescale keys, values and hidden activations of feed-forward layers.

All vectors start as ones. See also: `LoRA` adds a product where this rescales; both merge into the weights.

    k = scale * (K x)        v = scale * (V x)        feed-forward: down(scale * activate(up(x)))
"""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.adaptation.peft.base import AdaptedLinear, PeftMethod, Target, find_linears, refuse_recurrent
from pretune.core.config import NonEmpty, spec
from pretune.models.model import LanguageModel


@spec
class IA3(PeftMethod):
    """Learned vectors that rescale keys, values and hidden activations (Liu et al., 2022)."""

    targets: Annotated[tuple[Target, ...], NonEmpty()] = ("k", "v", "down")
    inputs: tuple[Target, ...] = ("down",)  # targets whose input is rescaled; of the others the output

    is_mergeable: ClassVar[bool] = True
    rate: ClassVar[float] = 1e-2

    def insert_modules(self, model: LanguageModel, seed: int) -> None:
        """Add a vector of ones to every target of every block. The seed is not used."""
        refuse_recurrent(model, "IA3 rescales keys, values and feed-forward layers, which a recurrent model lacks")
        for _, owner, name, linear in find_linears(model, self.targets):
            assert isinstance(linear, nn.Linear)
            setattr(owner, name, InputScaledLinear(linear) if name in self.inputs else ScaledLinear(linear))


class ScaledLinear(AdaptedLinear):
    """scale * (W x + b)"""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.scale = Parameter(torch.ones(linear.out_features, device=linear.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        return self.finish(x, F.linear(x, self.weight, self.bias))

    def finish(self, x: Tensor, y: Tensor) -> Tensor:
        """Rescale y = W x + b."""
        return y * self.scale.to(y.dtype)

    def merge_weights(self) -> None:
        """Multiply the rows of the weight, and the bias."""
        self.weight.mul_(self.scale[:, None])
        if self.bias is not None:
            self.bias.mul_(self.scale)


class InputScaledLinear(AdaptedLinear):
    """W (scale * x) + b"""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.scale = Parameter(torch.ones(linear.in_features, device=linear.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x * self.scale.to(x.dtype), self.weight, self.bias)

    def merge_weights(self) -> None:
        """Multiply the columns of the weight."""
        self.weight.mul_(self.scale)
