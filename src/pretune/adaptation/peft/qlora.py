"""QLoRA (Dettmers et al., 2023): the linear layers of the blocks in 4 bits and frozen, with trained low-rank products.

Forward and backward pass dequantize a weight for one product and discard it. A model takes an eighth of the memory of
fp32. Adapters are saved like LoRA's, and belong to the base model as quantized here. Merging adds them to the
dequantized weights. See also: `LoRA` has its base in full precision, and the same files.
"""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

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
    sample_weight,
    to_linear,
    train_only,
)
from pretune.adaptation.peft.lora import LoRA, LoraLinear
from pretune.adaptation.peft.nf4 import QuantizedWeight, build_scale_table, build_value_table, dequantize, quantize
from pretune.core.config import Ge, NonEmpty, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.models.model import LanguageModel


@spec(kind="qlora")
class QLoRA(LoRA):
    """QLoRA: LoRA on a 4-bit base model, NF4 with double quantization (Dettmers et al., 2023)."""

    targets: Annotated[tuple[Target, ...], NonEmpty()] = TARGETS  # the paper needs all layers to match full fine-tuning
    block: Annotated[int, Ge(2)] = 64  # weights that share a scale
    group: Positive[int] | None = 256  # scales that share a second-level scale; None: scales stay in fp32

    def __post_init__(self) -> None:
        if self.block % 2:
            raise UsageError(f"block of QLoRA must be even, got {self.block}")

    def apply(self, model: LanguageModel, *, seed: int = 0) -> tuple[str, ...]:
        """Quantize the linear layers of the blocks and add products to the targets; return the names of all A and B."""
        freeze_base(model)
        for number, (_, owner, name, linear) in enumerate(find_linears(model, TARGETS)):
            assert isinstance(linear, nn.Linear)
            base = Linear4bit(linear, block=self.block, group=self.group)
            setattr(owner, name, LoraLinear(base, self, mix(seed, number) >> 1) if name in self.targets else base)
        return train_only(model, self.list_trainable_names(model))

    @torch.no_grad()
    def merge(self, model: LanguageModel) -> None:
        """Add the products to the dequantized weights, in the model's precision, and restore linear layers."""
        dtype = model.tokens.weight.dtype
        for _, owner, name, layer in find_adapted_layers(model):
            if isinstance(layer, LoraLinear | Linear4bit):
                assert isinstance(layer.weight4, Weight4bit)
                weight = layer.weight4.dequantize(torch.promote_types(dtype, torch.float32))
                if isinstance(layer, LoraLinear):
                    weight = weight + layer.compute_delta()
                layer.weight = Parameter(weight.to(dtype), requires_grad=False)
                setattr(owner, name, to_linear(layer))


class Weight4bit(nn.Module):
    """A frozen 4-bit matrix; a product with it stores nothing else for the backward pass."""

    codes: Tensor
    scales: Tensor
    coarse: Tensor | None
    values: Tensor
    steps: Tensor

    def __init__(self, weight: Tensor, *, block: int = 64, group: int | None = 256) -> None:
        super().__init__()
        quantized_weight = quantize(weight, block=block, group=group)
        self.shape, self.block, self.group = quantized_weight.shape, block, group
        self.sample = b"" if weight.is_meta else sample_weight(weight)  # before quantization
        self.register_buffer("codes", quantized_weight.codes)
        self.register_buffer("scales", quantized_weight.scales)
        self.register_buffer("coarse", quantized_weight.coarse)
        # Tables, stored as bits like the rest, so that they move with the model but are not rounded with it.
        self.register_buffer("values", build_value_table(weight.device).view(torch.int32), persistent=False)
        self.register_buffer("steps", build_scale_table(weight.device).view(torch.int32), persistent=False)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the dequantized matrix."""
        return _dequantize_buffers(dtype, (self.shape, self.block, self.group), *self._get_buffers())

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Compute W x + bias, in autocast's precision if it is enabled."""
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        x, bias = x.to(dtype), None if bias is None else bias.to(dtype)
        out: Tensor = _Linear4bitFunction.apply(x, bias, (self.shape, self.block, self.group), *self._get_buffers())  # type: ignore[no-untyped-call]
        return out

    def _get_buffers(self) -> "QuantBuffers":
        return self.codes, self.scales, self.coarse, self.values, self.steps


QuantBuffers = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]
QuantShape = tuple[tuple[int, int], int, int | None]
"""Shape, block and group size of a matrix."""


def _dequantize_buffers(dtype: torch.dtype, quant_shape: QuantShape, *buffers: Tensor | None) -> Tensor:
    codes, scales, coarse, values, steps = buffers
    assert codes is not None and scales is not None and values is not None and steps is not None
    shape, block, group = quant_shape
    quantized_weight = QuantizedWeight(codes=codes, scales=scales, coarse=coarse, shape=shape, block=block, group=group)
    return dequantize(quantized_weight, dtype, values.view(torch.float32), steps.view(torch.float32))


class _Linear4bitFunction(torch.autograd.Function):
    """A linear layer that saves only its 4-bit weight for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, quant_shape: QuantShape, *buffers: Tensor | None) -> Tensor:
        ctx.save_for_backward(*buffers)
        ctx.facts = quant_shape
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x, _dequantize_buffers(x.dtype, quant_shape, *buffers), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad_output.device.type, enabled=False):
            grad_input = grad_output @ _dequantize_buffers(grad_output.dtype, ctx.facts, *ctx.saved_tensors)
        grad_bias = grad_output.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return grad_input, grad_bias, None, None, None, None, None, None


class Linear4bit(nn.Module):
    """A 4-bit linear layer; its bias is unchanged."""

    is_adapter: ClassVar[bool] = True

    def __init__(self, linear: nn.Linear, *, block: int = 64, group: int | None = 256) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight4 = Weight4bit(linear.weight, block=block, group=group)
        self.register_parameter("bias", linear.bias)
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.weight4(x, self.bias)
        return out


def iter_original_weights(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...], bytes]]:
    """Yield name, shape and sample of every quantized weight, before quantization."""
    for path, module in model.named_modules():
        if isinstance(module, Weight4bit):
            yield path.removesuffix("4"), module.shape, module.sample
