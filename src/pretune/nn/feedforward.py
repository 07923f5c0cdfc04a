"""Position-wise feed-forward layer, optionally gated."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.config import spec
from pretune.nn.activations import Dropout, gelu, gelu_tanh

ActivationName = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "identity"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


@spec
class FeedForward:
    """down(act(up(x))), or with `gated` down(act(gate(x)) * up(x)): GEGLU, SwiGLU (Shazeer, 2020)."""

    hidden: int
    activation: ActivationName = "gelu"
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0  # of the hidden activations

    def build(self, *, width: int) -> "FeedForwardLayer":
        return FeedForwardLayer(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with."""
        return (2 + self.gated) * width * self.hidden

    def params(self, *, width: int) -> int:
        return self.count_weights(width=width) + self.bias * ((1 + self.gated) * self.hidden + width)


class FeedForwardLayer(nn.Module):
    def __init__(self, spec: FeedForward, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, spec.hidden, bias=spec.bias)
        self.gate = nn.Linear(width, spec.hidden, bias=spec.bias) if spec.gated else None
        self.down = nn.Linear(spec.hidden, width, bias=spec.bias)
        self.activate = ACTIVATIONS[spec.activation]
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activate(self.up(x)) if self.gate is None else self.activate(self.gate(x)) * self.up(x)
        out: Tensor = self.down(self.dropout(hidden))
        return out
