"""BitFit (Ben Zaken et al., 2022): only the biases are trained.

No modules are added, so there is nothing to merge: the trained biases are the model's own. A family without biases in
its linear layers (T5, Llama) gets zero biases, and its spec changes accordingly: such a model is saved in a layout that
has them. See also: `IA3` multiplies where this adds.

    y = W x + b        W frozen, b trained; of norms the bias, not the weight
"""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn
from torch.nn import Parameter

from pretune.adaptation.peft.base import TARGETS, PeftMethod, find_linears
from pretune.adaptation.surgery import change_stacks
from pretune.core.config import spec
from pretune.models.model import LanguageModel
from pretune.nn.attention import MultiHeadAttention
from pretune.nn.block import Block
from pretune.nn.layers import FeedForwardLayer
from pretune.nn.relative_attention import RelativeAttentionLayer
from pretune.nn.stack import Stack

BODY_PREFIXES = ("encoder.", "decoder.", "pooler.")
QUERY_BIASES = ("content", "position", "segment")
"""Vectors that relative attention adds to its queries."""


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
        names = [
            name for name, _ in model.named_parameters() if name.endswith(".bias") and name.startswith(BODY_PREFIXES)
        ]
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
