"""A convolution over the input of a stack, added after its first layer (He et al., 2021)."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.core.config import Fraction, Ge, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.layers import ACTIVATIONS, ActivationName, Dropout, LayerNorm, Norm


@spec
class Convolution:
    """norm(y + act(conv(x))) of the stack's input x and the first layer's output y.

    Every token has a window of `kernel` tokens of its own sequence, centred on it; there are zeros beyond its ends.
    """

    kernel: Annotated[int, Ge(1)] = 3
    groups: Positive[int] = 1
    activation: ActivationName = "tanh"
    norm: Norm = LayerNorm()
    dropout: Fraction = 0.0  # of the convolution's output

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise UsageError(f"kernel must be odd, got {self.kernel}")

    def build(self, *, width: int) -> "ConvolutionLayer":
        return ConvolutionLayer(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with."""
        if width % self.groups:
            raise UsageError(f"groups {self.groups} must divide width {width}")
        return self.kernel * width * width // self.groups

    def params(self, *, width: int) -> int:
        return self.count_weights(width=width) + width + self.norm.params(width=width)


class ConvolutionLayer(nn.Module):
    """Weights as in `torch.nn.Conv1d`: `[W, W / groups, kernel]`."""

    def __init__(self, spec: Convolution, width: int) -> None:
        super().__init__()
        self.kernel, self.groups = spec.kernel, spec.groups
        self.weight = Parameter(torch.empty(width, width // spec.groups, spec.kernel))
        self.bias = Parameter(torch.zeros(width))
        self.activate = ACTIVATIONS[spec.activation]
        self.norm = spec.norm.build(width=width)
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the first layer's output `[N, W]` with the convolution of the input `[N, W]`."""
        out: Tensor = self.norm(y + self.activate(self.dropout(self._convolve(x, batch.sequence))))
        return out.to(y.dtype)

    def _convolve(self, x: Tensor, sequence: Tensor) -> Tensor:
        """Convolve every sequence by itself: the windows side by side, times the weights.

        Sequences do not cross rows, so that neighbours of a flat batch with the same sequence are neighbours in it.
        """
        reach, (tokens, width) = self.kernel // 2, x.shape
        steps = torch.arange(-reach, reach + 1, device=x.device)
        places = torch.arange(tokens, device=x.device)[:, None] + steps  # [N, kernel]
        neighbours = places.clamp(0, tokens - 1)
        is_inside = (neighbours == places) & (sequence[neighbours] == sequence[:, None])
        windows = torch.where(is_inside[..., None], x[neighbours], 0.0)  # [N, kernel, W]
        if self.groups == 1:
            return F.linear(windows.flatten(1), self.weight.transpose(1, 2).flatten(1), self.bias)
        group_windows = windows.view(tokens, self.kernel, self.groups, -1)
        weight = self.weight.view(self.groups, -1, *self.weight.shape[1:])
        return torch.einsum("nkgi,goik->ngo", group_windows, weight).reshape(tokens, width) + self.bias
