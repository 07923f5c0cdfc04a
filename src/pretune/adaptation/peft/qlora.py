"""QLoRA (Dettmers et al., 2023): the linear layers of the blocks in 4 bits and frozen, with trained low-rank products.

Forward and backward pass dequantize a weight for one product and discard it. A model takes an eighth of the memory of
fp32. Adapters are saved like LoRA's, and belong to the base model as quantized here. Merging adds them to the
dequantized weights. See also: `LoRA` has its base in full precision, and the same files.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import Parameter

from pretune.adaptation.peft.base import (
    MAX_SIZE,
    TARGETS,
    Target,
    find_adapted_layers,
    find_linears,
    freeze_base,
    init_uniform,
    sample_weight,
    train_only,
)
from pretune.adaptation.peft.nf4 import QuantizedWeight, build_scale_table, build_value_table, dequantize, quantize
from pretune.core.config import Ge, Le, Lt, NonEmpty, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.models.model import LanguageModel


@spec(kind="qlora")
class QLoRA:
    """QLoRA: LoRA on a 4-bit base model, NF4 with double quantization (Dettmers et al., 2023)."""

    rank: Annotated[int, Ge(1), Le(MAX_SIZE)] = 8
    alpha: Positive[float] = 16.0
    targets: Annotated[tuple[Target, ...], NonEmpty()] = TARGETS  # the paper needs all layers to match full fine-tuning
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0  # on the input of A
    block: Annotated[int, Ge(2)] = 64  # weights that share a scale
    group: Positive[int] | None = 256  # scales that share a second-level scale; None: scales stay in fp32

    is_mergeable: ClassVar[bool] = True
    rate: ClassVar[float] = 1e-3

    def __post_init__(self) -> None:
        if self.block % 2:
            raise UsageError(f"block of QLoRA must be even, got {self.block}")

    def apply(self, model: LanguageModel, *, seed: int = 0) -> tuple[str, ...]:
        """Quantize the linear layers of the blocks and add products to the targets; return the names of all A and B."""
        freeze_base(model)
        for number, (_, owner, name, linear) in enumerate(find_linears(model, TARGETS)):
            assert isinstance(linear, nn.Linear)
            is_target = name in self.targets
            setattr(
                owner,
                name,
                QloraLinear(linear, self, mix(seed, number) >> 1) if is_target else Linear4bit(linear, self),
            )
        return train_only(model, self.list_trainable_names(model))

    def list_trainable_names(self, model: LanguageModel) -> tuple[str, ...]:
        """Return A and B of every target."""
        paths = [path for path, _, _, layer in find_adapted_layers(model) if isinstance(layer, QloraLinear)]
        return tuple(f"{path}.{part}" for path in paths for part in ("a", "b"))

    @torch.no_grad()
    def merge(self, model: LanguageModel) -> None:
        """Add the products to the dequantized weights, in the model's precision, and restore linear layers."""
        dtype = model.tokens.weight.dtype
        for _, owner, name, layer in find_adapted_layers(model):
            if isinstance(layer, QloraLinear | Linear4bit):
                compute_dtype = torch.promote_types(dtype, torch.float32)
                weight = layer.weight4.dequantize(compute_dtype)
                if isinstance(layer, QloraLinear):
                    weight = weight + layer.compute_delta()
                linear = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
                linear.weight = Parameter(weight.to(dtype), requires_grad=False)
                linear.bias = layer.bias  # type: ignore[assignment]
                setattr(owner, name, linear.train(layer.training))


class Weight4bit(nn.Module):
    """A frozen 4-bit matrix; a product with it stores nothing else for the backward pass."""

    codes: Tensor
    scales: Tensor
    coarse: Tensor | None
    values: Tensor
    steps: Tensor

    def __init__(self, weight: Tensor, spec: QLoRA) -> None:
        super().__init__()
        quantized_weight = (
            _allocate(weight, spec) if weight.is_meta else quantize(weight, block=spec.block, group=spec.group)
        )
        self.shape, self.block, self.group = quantized_weight.shape, quantized_weight.block, quantized_weight.group
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
    in_features: int
    out_features: int
    weight4: Weight4bit
    bias: Parameter | None
    sample: bytes

    def __init__(self, linear: nn.Linear, spec: QLoRA) -> None:
        super().__init__()
        _wrap_linear(self, linear, spec)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.weight4(x, self.bias)
        return out


class QloraLinear(nn.Module):
    """A 4-bit linear layer with trained `a` [r, in] and `b` [out, r]."""

    is_adapter: ClassVar[bool] = True
    in_features: int
    out_features: int
    weight4: Weight4bit
    bias: Parameter | None
    sample: bytes

    def __init__(self, linear: nn.Linear, spec: QLoRA, seed: int) -> None:
        super().__init__()
        _wrap_linear(self, linear, spec)
        self.scale = spec.alpha / spec.rank
        self.a = init_uniform((spec.rank, linear.in_features), 1 / math.sqrt(linear.in_features), linear.weight, seed)
        self.b = Parameter(torch.zeros(linear.out_features, spec.rank, device=linear.weight.device))
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.weight4(x, self.bias)
        hidden = F.linear(self.dropout(x).to(self.a.dtype), self.a)
        # NOTE: not torch.add(…, alpha=): compiled after a matrix product, torch 2.11 to 2.13 leave alpha out.
        return y + F.linear(hidden * self.scale, self.b).to(y.dtype)

    def compute_delta(self) -> Tensor:
        """Return (alpha / r) B A, the change of the weight."""
        dtype = torch.promote_types(self.a.dtype, torch.float32)
        return self.scale * (self.b.to(dtype) @ self.a.to(dtype))


def compute_footprint(model: nn.Module) -> tuple[int, int]:
    """Return the bytes of a model's frozen weights, and their bytes without 4-bit quantization.

    The latter assumes the precision of the frozen weights that are not quantized, or half precision without any.
    """
    weights4 = [module for module in model.modules() if isinstance(module, Weight4bit)]
    frozen_parameters = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    size = max((parameter.element_size() for parameter in frozen_parameters), default=2)
    frozen_bytes = sum(parameter.nbytes for parameter in frozen_parameters)
    bytes4 = sum(tensor.nbytes for module in weights4 for tensor in module.buffers())
    return bytes4 + frozen_bytes, size * sum(module.shape[0] * module.shape[1] for module in weights4) + frozen_bytes


def _wrap_linear(module: Any, linear: nn.Linear, spec: QLoRA) -> None:
    module.in_features, module.out_features = linear.in_features, linear.out_features
    module.weight4, module.bias = Weight4bit(linear.weight, spec), linear.bias
    module.sample = b"" if linear.weight.is_meta else sample_weight(linear.weight)
    module.train(linear.training)


def _allocate(weight: Tensor, spec: QLoRA) -> QuantizedWeight:
    """Return a quantized weight without allocated memory, for a weight on the meta device."""
    blocks = -(-weight.numel() // spec.block)
    coarse = None if spec.group is None else weight.new_empty(-(-blocks // spec.group) + 1, dtype=torch.int32)
    return QuantizedWeight(
        codes=weight.new_empty(blocks * spec.block // 2, dtype=torch.uint8),
        scales=weight.new_empty(blocks, dtype=torch.int32 if coarse is None else torch.uint8),
        coarse=coarse,
        shape=(weight.shape[0], weight.shape[1]),
        block=spec.block,
        group=spec.group,
    )


def iter_original_weights(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...], bytes]]:
    """Yield name, shape and sample of every quantized weight, before quantization."""
    for path, module in model.named_modules():
        if isinstance(module, Linear4bit | QloraLinear):
            yield f"{path}.weight", (module.out_features, module.in_features), module.sample
