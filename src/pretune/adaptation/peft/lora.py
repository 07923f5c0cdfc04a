"""Low-rank adaptation (LoRA; Hu et al., 2022): a product of two thin matrices is added to a frozen weight W.

y = W x + (alpha / r) B A x: A is random and B is zero, so the model's outputs are unchanged at first. After training
the product is added to W, and inference costs nothing extra. See also: `IA3` trains one vector instead of two matrices;
an `Adapter` comes after a layer, with an activation, and cannot be merged.

         x ──┬── W (frozen) ─────────── + ── y
             └── dropout ── A ── B ─────┘
                          [r, in] [out, r]
"""

import math
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.adaptation.peft.base import MAX_SIZE, AdaptedLinear, PeftMethod, Target, find_linears, init_uniform
from pretune.core.config import Ge, Le, Lt, NonEmpty, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.models.model import LanguageModel


@spec(kind="lora")
class LoRA(PeftMethod):
    """LoRA: low-rank products added to linear layers: rank, alpha, targets, dropout (Hu et al., 2022)."""

    rank: Annotated[int, Ge(1), Le(MAX_SIZE)] = 8
    alpha: Positive[float] = 16.0
    # The paper's choice; later work finds all seven best.
    targets: Annotated[tuple[Target, ...], NonEmpty()] = ("q", "v")
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0  # on the input of A

    is_mergeable: ClassVar[bool] = True
    rate: ClassVar[float] = 1e-3

    def insert_modules(self, model: LanguageModel, seed: int) -> None:
        """Add a product to every target of every block."""
        check_dropout(model, self.dropout)
        for number, (_, owner, name, linear) in enumerate(find_linears(model, self.targets)):
            assert isinstance(linear, nn.Linear)
            setattr(owner, name, LoraLinear(linear, self, mix(seed, number) >> 1))


def check_dropout(model: LanguageModel, dropout: float) -> None:
    """Raise `UsageError` for dropout in a recurrent model: its products are added to the weights, not to outputs."""
    if dropout and model.spec.is_recurrent:
        raise UsageError(f"LoRA in a recurrent model has no dropout of its inputs; set dropout to 0, got {dropout:g}")


class LoraLinear(AdaptedLinear):
    """A frozen linear layer, plain or in 4 bits (`base`), with trained `a` [r, in] and `b` [out, r].

    Attention calls `finish` when it has computed the product with W itself.
    """

    def __init__(self, base: nn.Module, spec: LoRA, seed: int) -> None:
        super().__init__(base)
        self.base_type: Any = type(base)
        self.scale = spec.alpha / spec.rank
        device = next(iter((*base.parameters(), *base.buffers()))).device
        self.a = init_uniform((spec.rank, self.in_features), 1 / math.sqrt(self.in_features), device, seed)
        self.b = Parameter(torch.zeros(self.out_features, spec.rank, device=device))
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.finish(x, self.base_type.forward(self, x))

    def finish(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the low-rank product to y = W x."""
        hidden = F.linear(self.dropout(x).to(self.a.dtype), self.a)
        # NOTE: not torch.add(…, alpha=): compiled after a matrix product, torch 2.11 to 2.13 leave alpha out.
        return y + F.linear(hidden * self.scale, self.b).to(y.dtype)

    def merge_weights(self) -> None:
        """Add the product to the weight, computed in fp32 or better."""
        self.weight.copy_(self.compute_delta() + self.weight)

    def compute_weight(self) -> Tensor:
        """Return the adapted weight W + (alpha / r) B A, for an LSTM, whose library takes weights instead of layers."""
        delta = self.compute_delta()
        weight4: Any = getattr(self, "weight4", None)
        base: Tensor = self.weight if weight4 is None else weight4.dequantize(delta.dtype)
        return (base + delta).to(base.dtype)

    def compute_delta(self) -> Tensor:
        """Return (alpha / r) B A, the change of the weight."""
        dtype = torch.promote_types(self.a.dtype, torch.float32)
        return self.scale * (self.b.to(dtype) @ self.a.to(dtype))
