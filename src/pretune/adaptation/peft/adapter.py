"""Adapters (Houlsby et al., 2019): after every sublayer a bottleneck with a residual, and the norms' parameters.

The way up starts at zero, so that the model starts as it was. The activation lies between, so nothing can be merged.
Relations: `LoRA` is the same bottleneck without the activation, beside the layer instead of after it.

    sublayer ── W ──┬─────────────────────── + ── dropout, residual, norm
                    └── down ── GELU ── up ──┘
                        [width -> bottleneck -> width]
"""

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.adaptation.peft.base import (
    MAX_SIZE,
    find_adapted_layers,
    find_linears,
    freeze_base,
    init_uniform,
    train_only,
    wrap_linear,
)
from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.models.model import LanguageModel
from pretune.nn.feedforward import ACTIVATIONS, ActivationName
from pretune.training.optim.groups import NORM_MODULES

Sublayer = Literal["attention", "feedforward"]
OUTPUT_LAYERS: dict[str, str] = {"attention": "out", "feedforward": "down"}
"""The layer of each sublayer that writes; attention to a source is attention."""


@spec
class Adapter:
    """Bottlenecks after attention and feed-forward layers, and the norms (Houlsby et al., 2019)."""

    bottleneck: int = 64
    activation: ActivationName = "gelu"
    after: tuple[Sublayer, ...] = ("attention", "feedforward")  # feed-forward alone: Pfeiffer et al., 2021
    norms: bool = True  # whether the norms of the blocks are trained as well

    is_mergeable: ClassVar[bool] = False
    rate: ClassVar[float] = 1e-3

    def __post_init__(self) -> None:
        if not 1 <= self.bottleneck <= MAX_SIZE or not self.after:
            raise UsageError(
                f"adapters need a bottleneck of 1 to {MAX_SIZE:,}, found {self.bottleneck}, and a place after a layer"
            )

    def apply(self, model: LanguageModel, *, seed: int = 0) -> tuple[str, ...]:
        """Put a bottleneck after every sublayer: the names of their parameters, and of the norms'."""
        freeze_base(model)
        places = [OUTPUT_LAYERS[place] for place in self.after]
        for number, (_, owner, name, linear) in enumerate(find_linears(model, places)):
            assert isinstance(linear, nn.Linear)
            setattr(owner, name, LinearWithAdapter(linear, self, mix(seed, number) >> 1))
        return train_only(model, self.list_trainable_names(model))

    def list_trainable_names(self, model: LanguageModel) -> tuple[str, ...]:
        """Down and up with their biases, and the norms of the stacks."""
        found = [
            f"{path}.adapter.{name}"
            for path, _, _, layer in find_adapted_layers(model)
            if isinstance(layer, LinearWithAdapter)
            for name, _ in layer.adapter.named_parameters()
        ]
        for path, module in model.named_modules():
            if self.norms and isinstance(module, NORM_MODULES) and path.startswith(("encoder.", "decoder.")):
                found += [f"{path}.{name}" for name, _ in module.named_parameters()]
        return tuple(found)

    def merge(self, model: LanguageModel) -> None:
        """Refuse: the activation stands between the weights."""
        raise UsageError("adapters cannot be merged into the weights: keep them beside the model, or use LoRA or IA3")


class LinearWithAdapter(nn.Module):
    """A linear layer, and the adapter that reads what it writes."""

    is_adapter: ClassVar[bool] = True
    weight: Parameter
    bias: Parameter | None

    def __init__(self, linear: nn.Linear, spec: Adapter, seed: int) -> None:
        super().__init__()
        self.adapter = Bottleneck(linear, spec, seed)
        wrap_linear(self, linear)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        out: Tensor = y + self.adapter(y)
        return out


class Bottleneck(nn.Module):
    """up(activate(down(x)))"""

    def __init__(self, linear: nn.Linear, spec: Adapter, seed: int) -> None:
        super().__init__()
        width, like = linear.out_features, linear.weight
        self.down = init_uniform((spec.bottleneck, width), 1 / math.sqrt(width), like, seed)
        self.down_bias = Parameter(torch.zeros(spec.bottleneck, device=like.device))
        self.up = Parameter(torch.zeros(width, spec.bottleneck, device=like.device))
        self.up_bias = Parameter(torch.zeros(width, device=like.device))
        self.activate = ACTIVATIONS[spec.activation]

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activate(F.linear(x.to(self.down.dtype), self.down, self.down_bias))
        return F.linear(hidden, self.up, self.up_bias).to(x.dtype)
