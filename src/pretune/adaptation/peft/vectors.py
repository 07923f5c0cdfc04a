"""Methods that train vectors: IA3 rescales activations, BitFit shifts them.

IA3 (Liu et al., 2022): learned vectors rescale keys, values and hidden activations of feed-forward layers. All vectors
start as ones, and merge into the weights.

    k = scale * (K x)        v = scale * (V x)        feed-forward: down(scale * activate(up(x)))

BitFit (Ben Zaken et al., 2022): only the biases are trained. No modules are added, so there is nothing to merge: the
trained biases are the model's own. A family without biases in its linear layers (T5, Llama) gets zero biases, and its
spec changes accordingly: such a model is saved in a layout that has them.

    y = W x + b        W frozen, b trained; of norms the bias, not the weight

See also: `LoRA` adds a product of matrices where these rescale and shift.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.adaptation.peft.base import TARGETS, AdaptedLinear, PeftMethod, Target, find_linears, refuse_recurrent
from pretune.adaptation.surgery import change_stacks
from pretune.core.config import NonEmpty, spec
from pretune.models.model import LanguageModel
from pretune.nn.attention import MultiHeadAttention
from pretune.nn.block import Block
from pretune.nn.layers import FeedForwardLayer
from pretune.nn.relative_attention import RelativeAttentionLayer
from pretune.nn.stack import Stack

BODY_PREFIXES = ("encoder.", "decoder.", "pooler.")
QUERY_BIASES = ("content", "position", "segment")
"""Vectors that relative attention adds to its queries."""


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


@spec(kind="bitfit")
class BitFit(PeftMethod):
    """BitFit: train only the biases (Ben Zaken et al., 2022)."""

    is_mergeable: ClassVar[bool] = True
    rate: ClassVar[float] = 3e-3

    def insert_modules(self, model: LanguageModel, seed: int) -> None:
        """Add missing biases. The seed is not used."""
        for _, owner, _, linear in find_linears(model, TARGETS):
            if isinstance(owner, MultiHeadAttention | FeedForwardLayer) and getattr(linear, "bias", None) is None:
                assert isinstance(linear, nn.Linear)
                linear.bias = Parameter(torch.zeros_like(linear.weight[:, 0]))
        model.spec = change_stacks(model.spec, _add_stack_biases)

    def list_trainable_names(self, model: LanguageModel) -> tuple[str, ...]:
        """Return the biases of the body, norms included; those of the heads are excluded."""
        biases = [name for name, _ in model.named_parameters() if name.endswith(".bias")]
        names = [name for name in biases if name.startswith(BODY_PREFIXES)]
        for path, module in model.named_modules():
            if isinstance(module, RelativeAttentionLayer):
                names += [f"{path}.{name}" for name in QUERY_BIASES]
        return tuple(names)

    def merge(self, model: LanguageModel) -> None:
        """Do nothing: the trained biases are the model's own."""


def _add_stack_biases(stack: Stack) -> Stack:
    """Return a stack whose linear layers have biases."""

    def add_block_biases(spec: Block) -> Block:
        return replace(
            spec,
            attention=replace(spec.attention, bias=True),
            cross=None if spec.cross is None else replace(spec.cross, bias=True),
            feedforward=replace(spec.feedforward, bias=True),
        )

    return replace(stack, blocks=tuple(map(add_block_biases, stack.blocks)))
