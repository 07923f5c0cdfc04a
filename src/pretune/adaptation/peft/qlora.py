"""QLoRA (Dettmers et al., 2023): the linear layers of the blocks in 4 bits and frozen, low-rank products beside them.

Forward and backward pass read a weight by making it anew from its 4 bits, and keep it no longer than the one product
with it. So a model takes an eighth of the memory of fp32, and learns as with LoRA. What is learned is saved as LoRA is:
it belongs to the base model as quantised here. Merging writes it into the dequantised weights.
Relations: `LoRA` with its base in full precision; the same files.
"""

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import Parameter

from pretune.adaptation.peft.base import (
    TARGETS,
    Target,
    find_adapted_layers,
    find_linears,
    freeze_base,
    init_uniform,
    sample_weight,
    train_only,
)
from pretune.adaptation.peft.lora import check_lora
from pretune.adaptation.peft.nf4 import QuantisedWeight, build_scale_table, build_value_table, dequantise, quantise
from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.models.model import LanguageModel


@spec
class Qlora:
    """QLoRA: LoRA on a base of 4 bits, NF4 with double quantisation (Dettmers et al., 2023)."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[Target, ...] = TARGETS  # the paper finds that all layers are needed to match full fine-tuning
    dropout: float = 0.0  # of what A reads
    block: int = 64  # weights that share a scale
    group: int | None = 256  # scales that share one; None: scales stay in fp32

    is_mergeable: ClassVar[bool] = True
    rate: ClassVar[float] = 1e-3

    def __post_init__(self) -> None:
        check_lora("QLoRA", self.rank, self.alpha, self.dropout, self.targets)
        if self.block < 2 or self.block % 2 or (self.group is not None and self.group < 1):
            raise UsageError(
                f"QLoRA needs an even block of weights and at least one scale in a group (or null); found block "
                f"{self.block}, group {self.group}"
            )

    def apply(self, model: LanguageModel, *, seed: int = 0) -> tuple[str, ...]:
        """Quantise every linear layer of the blocks, and put a product beside the targets: the names of all A and B."""
        freeze_base(model)
        for number, (_, owner, name, linear) in enumerate(find_linears(model, TARGETS)):
            assert isinstance(linear, nn.Linear)
            low = name in self.targets
            setattr(owner, name, QloraLinear(linear, self, mix(seed, number) >> 1) if low else Linear4bit(linear, self))
        return train_only(model, self.list_trainable_names(model))

    def list_trainable_names(self, model: LanguageModel) -> tuple[str, ...]:
        """A and B of every target."""
        found = [path for path, _, _, layer in find_adapted_layers(model) if isinstance(layer, QloraLinear)]
        return tuple(f"{path}.{part}" for path in found for part in ("a", "b"))

    @torch.no_grad()
    def merge(self, model: LanguageModel) -> None:
        """Add the products to the dequantised weights, in the model's precision, and put plain layers back."""
        dtype = model.tokens.weight.dtype
        for _, owner, name, layer in find_adapted_layers(model):
            if isinstance(layer, QloraLinear | Linear4bit):
                exact = torch.promote_types(dtype, torch.float32)
                weight = layer.weight4.dequantise(exact)
                if isinstance(layer, QloraLinear):
                    weight = weight + layer.compute_delta()
                plain = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
                plain.weight = Parameter(weight.to(dtype), requires_grad=False)
                plain.bias = layer.bias  # type: ignore[assignment]
                setattr(owner, name, plain.train(layer.training))


class Weight4bit(nn.Module):
    """A frozen matrix in 4 bits; a product with it keeps nothing but those."""

    codes: Tensor
    scales: Tensor
    coarse: Tensor | None
    values: Tensor
    steps: Tensor

    def __init__(self, weight: Tensor, spec: Qlora) -> None:
        super().__init__()
        made = _allocate(weight, spec) if weight.is_meta else quantise(weight, block=spec.block, group=spec.group)
        self.shape, self.block, self.group = made.shape, made.block, made.group
        self.register_buffer("codes", made.codes)
        self.register_buffer("scales", made.scales)
        self.register_buffer("coarse", made.coarse)
        # Tables, as bits like all else, so that they move with the model and are not rounded with it.
        self.register_buffer("values", build_value_table(weight.device).view(torch.int32), persistent=False)
        self.register_buffer("steps", build_scale_table(weight.device).view(torch.int32), persistent=False)

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """The matrix, made anew."""
        return _dequantise_buffers(dtype, (self.shape, self.block, self.group), *self._get_buffers())

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """W x + bias, in the precision of autocast where that is on."""
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        x, bias = x.to(dtype), None if bias is None else bias.to(dtype)
        out: Tensor = _Linear4bitFunction.apply(x, bias, (self.shape, self.block, self.group), *self._get_buffers())  # type: ignore[no-untyped-call]
        return out

    def _get_buffers(self) -> "QuantBuffers":
        return self.codes, self.scales, self.coarse, self.values, self.steps


QuantBuffers = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]
QuantShape = tuple[tuple[int, int], int, int | None]
"""Shape, block and group of a matrix."""


def _dequantise_buffers(dtype: torch.dtype, quant_shape: QuantShape, *buffers: Tensor | None) -> Tensor:
    codes, scales, coarse, values, steps = buffers
    assert codes is not None and scales is not None and values is not None and steps is not None
    shape, block, group = quant_shape
    made = QuantisedWeight(codes=codes, scales=scales, coarse=coarse, shape=shape, block=block, group=group)
    return dequantise(made, dtype, values.view(torch.float32), steps.view(torch.float32))


class _Linear4bitFunction(torch.autograd.Function):
    """A linear layer of which nothing is kept but the 4 bits of its weight, which the model has anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, quant_shape: QuantShape, *buffers: Tensor | None) -> Tensor:
        ctx.save_for_backward(*buffers)
        ctx.facts = quant_shape
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x, _dequantise_buffers(x.dtype, quant_shape, *buffers), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad_output.device.type, enabled=False):
            back = grad_output @ _dequantise_buffers(grad_output.dtype, ctx.facts, *ctx.saved_tensors)
        shift = grad_output.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return back, shift, None, None, None, None, None, None


class Linear4bit(nn.Module):
    """A linear layer in 4 bits; its bias stays as it was."""

    is_adapter: ClassVar[bool] = True
    in_features: int
    out_features: int
    weight4: Weight4bit
    bias: Parameter | None
    sample: bytes

    def __init__(self, linear: nn.Linear, spec: Qlora) -> None:
        super().__init__()
        _wrap_linear(self, linear, spec)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.weight4(x, self.bias)
        return out


class QloraLinear(nn.Module):
    """The same with `a` [r, in] and `b` [out, r] beside it, which are trained."""

    is_adapter: ClassVar[bool] = True
    in_features: int
    out_features: int
    weight4: Weight4bit
    bias: Parameter | None
    sample: bytes

    def __init__(self, linear: nn.Linear, spec: Qlora, seed: int) -> None:
        super().__init__()
        _wrap_linear(self, linear, spec)
        self.scale = spec.alpha / spec.rank
        self.a = init_uniform((spec.rank, linear.in_features), 1 / math.sqrt(linear.in_features), linear.weight, seed)
        self.b = Parameter(torch.zeros(linear.out_features, spec.rank, device=linear.weight.device))
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.weight4(x, self.bias)
        low = F.linear(self.dropout(x).to(self.a.dtype), self.a)
        # NOTE: not torch.add(…, alpha=): compiled after a matrix product, torch 2.11 to 2.13 leave alpha out.
        return y + F.linear(low * self.scale, self.b).to(y.dtype)

    def compute_delta(self) -> Tensor:
        """(alpha / r) B A: what is added to the weight."""
        exact = torch.promote_types(self.a.dtype, torch.float32)
        return self.scale * (self.b.to(exact) @ self.a.to(exact))


def compute_footprint(model: nn.Module) -> tuple[int, int]:
    """The bytes that a model's frozen weights take, and those they would take without 4 bits, all in the precision of
    the others (in half precision where there are no others).
    """
    small = [module for module in model.modules() if isinstance(module, Weight4bit)]
    rest = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    size = max((parameter.element_size() for parameter in rest), default=2)
    others = sum(parameter.nbytes for parameter in rest)
    now = sum(tensor.nbytes for module in small for tensor in module.buffers())
    return now + others, size * sum(module.shape[0] * module.shape[1] for module in small) + others


def _wrap_linear(module: Any, linear: nn.Linear, spec: Qlora) -> None:
    module.in_features, module.out_features = linear.in_features, linear.out_features
    module.weight4, module.bias = Weight4bit(linear.weight, spec), linear.bias
    module.sample = b"" if linear.weight.is_meta else sample_weight(linear.weight)
    module.train(linear.training)


def _allocate(weight: Tensor, spec: Qlora) -> QuantisedWeight:
    """Without any memory behind it."""
    blocks = -(-weight.numel() // spec.block)
    coarse = None if spec.group is None else weight.new_empty(-(-blocks // spec.group) + 1, dtype=torch.int32)
    return QuantisedWeight(
        codes=weight.new_empty(blocks * spec.block // 2, dtype=torch.uint8),
        scales=weight.new_empty(blocks, dtype=torch.int32 if coarse is None else torch.uint8),
        coarse=coarse,
        shape=(weight.shape[0], weight.shape[1]),
        block=spec.block,
        group=spec.group,
    )


def iter_original_weights(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...], bytes]]:
    """Name, shape and sample of every weight that was quantised, as they were."""
    for path, module in model.named_modules():
        if isinstance(module, Linear4bit | QloraLinear):
            yield f"{path}.weight", (module.out_features, module.in_features), module.sample
