"""Adapters (Houlsby et al., 2019): a bottleneck with a residual after every sublayer; norms are trained too.

The up-projection starts at zero, so the model's outputs are unchanged at first. The activation in between prevents
merging. See also: `LoRA` is the same bottleneck without the activation, parallel to the layer instead of after it.

    sublayer ── W ──┬─────────────────────── + ── dropout, residual, norm
                    └── down ── GELU ── up ──┘
                        [width -> bottleneck -> width]
"""

import math
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.adaptation.peft.base import MAX_SIZE, AdaptedLinear, PeftMethod, find_linears, init_uniform
from pretune.core.config import Ge, Le, NonEmpty, spec
from pretune.core.seed import mix
from pretune.models.model import LanguageModel
from pretune.nn.layers import ACTIVATIONS, ActivationName
from pretune.nn.lstm import LSTMLayer
from pretune.training.optim import NORM_MODULES

Sublayer = Literal["attention", "feedforward"]
OUTPUT_LAYERS: dict[str, str] = {"attention": "out", "feedforward": "down"}
"""Output layer of each sublayer; cross-attention counts as attention."""


@spec
class Adapter(PeftMethod):
    """Bottlenecks after attention and feed-forward layers, and the norms (Houlsby et al., 2019)."""

    bottleneck: Annotated[int, Ge(1), Le(MAX_SIZE)] = 64
    activation: ActivationName = "gelu"
    # Feed-forward only: Pfeiffer et al., 2021.
    sublayers: Annotated[tuple[Sublayer, ...], NonEmpty()] = ("attention", "feedforward")
    norms: bool = True  # train the norms of the blocks too

    rate: ClassVar[float] = 1e-3

    def insert_modules(self, model: LanguageModel, seed: int) -> None:
        """Insert a bottleneck after every sublayer, or after every layer of a recurrent model."""
        places = [OUTPUT_LAYERS[place] for place in self.sublayers]
        for number, (_, owner, name, linear) in enumerate(find_linears(model, places)):
            if isinstance(owner, LSTMLayer):
                if owner.adapter is None:
                    owner.adapter = OutputAdapter(owner.width, self, model.tokens.weight.device, mix(seed, number) >> 1)
                continue
            assert isinstance(linear, nn.Linear)
            setattr(owner, name, LinearWithAdapter(linear, self, mix(seed, number) >> 1))

    def list_trainable_names(self, model: LanguageModel) -> tuple[str, ...]:
        """Return the down- and up-projections with their biases, and the norms of the stacks."""
        names = [*PeftMethod.list_trainable_names(self, model)]
        for path, module in model.named_modules():
            if self.norms and isinstance(module, NORM_MODULES) and path.startswith(("encoder.", "decoder.")):
                names += [f"{path}.{name}" for name, _ in module.named_parameters()]
        return tuple(names)


class LinearWithAdapter(AdaptedLinear):
    """A linear layer followed by its adapter."""

    def __init__(self, linear: nn.Linear, spec: Adapter, seed: int) -> None:
        super().__init__(linear)
        self.adapter = Bottleneck(linear.out_features, spec, linear.weight.device, seed)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        out: Tensor = y + self.adapter(y)
        return out


class Bottleneck(nn.Module):
    """up(activate(down(x)))"""

    def __init__(self, width: int, spec: Adapter, device: torch.device, seed: int) -> None:
        super().__init__()
        self.down = init_uniform((spec.bottleneck, width), 1 / math.sqrt(width), device, seed)
        self.down_bias = Parameter(torch.zeros(spec.bottleneck, device=device))
        self.up = Parameter(torch.zeros(width, spec.bottleneck, device=device))
        self.up_bias = Parameter(torch.zeros(width, device=device))
        self.activate = ACTIVATIONS[spec.activation]

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activate(F.linear(x.to(self.down.dtype), self.down, self.down_bias))
        return F.linear(hidden, self.up, self.up_bias).to(x.dtype)


class OutputAdapter(Bottleneck):
    """x + up(activate(down(x))), after a recurrent layer."""

    is_adapter: ClassVar[bool] = True

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)
