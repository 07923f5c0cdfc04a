"""QLoRA (Dettmers et al., 2023): the linear layers of the blocks in 4 bits and frozen, with trained low-rank products.

Forward and backward pass dequantize a weight for one product and discard it. A model takes an eighth of the memory of
fp32. Adapters are saved like LoRA's, and belong to the base model as quantized here. Merging adds them to the
dequantized weights. See also: `LoRA` has its base in full precision, and the same files.

4-bit NormalFloat with double quantization takes 4.127 bits per weight. Weights are divided into blocks of 64. The
largest magnitude of a block is its scale, and every weight is stored as the index of the nearest of 16 values in
[-1, 1], which are spaced like quantiles of a normal distribution. The scales, minus their mean, are themselves stored
as bytes, in groups of 256 that share a scale: a byte is the index of the nearest of 256 values, which are denser near 0
(dynamic exponents; Dettmers et al., 2022). Two codes share a byte, the first in the upper half: the layout of
bitsandbytes.

    weights  [… 64 …][… 64 …] …        codes  4 bits each     scales  1 byte per block     coarse  4 bytes per group
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
    sample_weight,
    select_targets,
    to_linear,
)
from pretune.adaptation.peft.lora import LoRA, LoraLinear, check_dropout
from pretune.core.config import Ge, NonEmpty, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.models.model import LanguageModel
from pretune.nn.nf4 import NF4_VALUES
from pretune.nn.quantized_products import HAS_TRITON, dequantize_nf4, is_supported, is_supported_block, multiply_nf4

QuantShape = tuple[tuple[int, int], int, int | None]
"""Shape, block and group size of a 4-bit matrix."""
QuantBuffers = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]
"""Codes (two to a byte), scales of blocks (bytes; fp32 without `coarse`), `coarse` (fp32: scales of groups of scales,
then the mean of all scales), and the two tables (fp32)."""


def quantize(weight: Tensor, block: int, group: int | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Quantize a matrix to 4 bits: codes, scales and `coarse`, fp32 as its bits; with `group=None` without `coarse`."""
    flat = _split_blocks(weight.detach().float().reshape(-1), block)
    scales = flat.abs().amax(1)
    relative = flat / torch.where(scales > 0, scales, 1.0)[:, None]
    numbers = _find_nearest(relative, build_value_table(weight.device)).to(torch.uint8).view(-1, 2)
    codes = numbers[:, 0] << 4 | numbers[:, 1]
    if group is None:
        return codes, scales.view(torch.int32), None
    mean = scales.mean()
    residuals = _split_blocks(scales - mean, group)
    largest = residuals.abs().amax(1)
    steps = _find_nearest(residuals / torch.where(largest > 0, largest, 1.0)[:, None], build_scale_table(weight.device))
    coarse = torch.cat((largest, mean[None])).view(torch.int32)
    return codes, steps.to(torch.uint8).view(-1)[: len(scales)], coarse


def dequantize(dtype: torch.dtype, quant_shape: QuantShape, *buffers: Any) -> Tensor:
    """Return the matrix of the buffers of a `Weight4bit`."""
    shape, block, group = quant_shape
    codes, scales, coarse, values, steps = view_floats(*buffers)
    has_kernel = HAS_TRITON and codes.is_cuda and is_supported_block(block)
    if has_kernel and dtype in (torch.float16, torch.bfloat16, torch.float32):
        weight: Tensor = dequantize_nf4(codes, scales, coarse, values, steps, *shape, block, group or 1, dtype)
        return weight
    if coarse is not None and group is not None:
        scales = compute_scales(scales, coarse, steps, group)
    byte_values = torch.stack((values.repeat_interleave(16), values.repeat(16)), dim=1)  # [256, 2]: values of a byte
    flat = F.embedding(codes.int(), byte_values).view(-1, block) * scales[:, None]
    return flat.to(dtype).view(-1)[: shape[0] * shape[1]].view(shape)


def compute_scales(scales: Tensor, coarse: Tensor, steps: Tensor, group: int) -> Tensor:
    """Return the scales of the blocks, in fp32."""
    groups = F.pad(scales, (0, -len(scales) % group)).int().view(-1, group)
    residuals = F.embedding(groups, steps[:, None]).squeeze(-1) * coarse[:-1, None]
    return residuals.view(-1)[: len(scales)] + coarse[-1]


def view_floats(codes: Tensor, scales: Tensor, coarse: Tensor | None, values: Tensor, steps: Tensor) -> QuantBuffers:
    """View the buffers that hold the bits of fp32 as fp32."""
    if coarse is None:
        scales = scales.view(torch.float32)
    else:
        coarse = coarse.view(torch.float32)
    return codes, scales, coarse, values.view(torch.float32), steps.view(torch.float32)


def build_value_table(device: torch.device | str) -> Tensor:
    """Return the 16 values, in fp32."""
    return torch.tensor(NF4_VALUES, device=device)


def build_scale_table(device: torch.device | str) -> Tensor:
    """Return the 256 values of dynamic exponents, in fp32: each power of ten has twice as many as the one below."""
    parts = [torch.tensor([0.0, 1.0])]
    for power in range(7):
        edges = torch.linspace(0.1, 1, 2**power + 1)
        middles = 10.0 ** (power - 6) * (edges[:-1] + edges[1:]) / 2
        parts += [middles, -middles]
    return torch.cat(parts).sort().values.to(device)


def _split_blocks(flat: Tensor, size: int) -> Tensor:
    """Split into `[blocks, size]`; the last is padded with zeros."""
    return F.pad(flat, (0, -len(flat) % size)).view(-1, size)


def _find_nearest(numbers: Tensor, table: Tensor) -> Tensor:
    """Return the index of the nearest value of a sorted table for each number; of two, the lower."""
    return torch.bucketize(numbers, (table[:-1] + table[1:]) / 2)


@spec(kind="qlora")
class QLoRA(LoRA):
    """QLoRA: LoRA on a 4-bit base model, NF4 with double quantization (Dettmers et al., 2023)."""

    targets: Annotated[tuple[Target, ...], NonEmpty()] = TARGETS  # the paper needs all layers to match full fine-tuning
    block: Annotated[int, Ge(2)] = 64  # weights that share a scale
    group: Positive[int] | None = 256  # scales that share a second-level scale; None: scales stay in fp32

    def __post_init__(self) -> None:
        if self.block % 2:
            raise UsageError(f"block of QLoRA must be even, got {self.block}")

    def insert_modules(self, model: LanguageModel, seed: int) -> None:
        """Quantize the linear layers of the blocks and add products to the targets."""
        check_dropout(model, self.dropout)
        for number, (_, owner, name, linear) in enumerate(find_linears(model, TARGETS)):
            assert isinstance(linear, nn.Linear)
            base = Linear4bit(linear, block=self.block, group=self.group)
            is_target = name in select_targets(owner, self.targets)
            setattr(owner, name, LoraLinear(base, self, mix(seed, number) >> 1) if is_target else base)

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
    """A frozen 4-bit matrix; a product with it stores nothing else for the backward pass.

    Floats are stored as their bits, so that `model.half()` does not round them.
    """

    codes: Tensor
    scales: Tensor
    coarse: Tensor | None
    values: Tensor
    steps: Tensor

    def __init__(self, weight: Tensor, *, block: int = 64, group: int | None = 256) -> None:
        super().__init__()
        self.shape, self.block, self.group = (weight.shape[0], weight.shape[1]), block, group
        self.sample = b"" if weight.is_meta else sample_weight(weight)  # before quantization
        for name, tensor in zip(("codes", "scales", "coarse"), quantize(weight, block, group), strict=True):
            self.register_buffer(name, tensor)
        # The tables are buffers, so that they move with the model.
        self.register_buffer("values", build_value_table(weight.device).view(torch.int32), persistent=False)
        self.register_buffer("steps", build_scale_table(weight.device).view(torch.int32), persistent=False)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the dequantized matrix."""
        return dequantize(dtype, (self.shape, self.block, self.group), *self.get_buffers())

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Compute W x + bias, in autocast's precision if it is enabled."""
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        x, bias = x.to(dtype), None if bias is None else bias.to(dtype)
        if is_supported(x, self.shape[1], self.block):
            rows, buffers = x.reshape(-1, self.shape[1]), view_floats(*self.get_buffers())
            y: Tensor = multiply_nf4(rows, *buffers, self.shape[0], self.block, self.group or 1)
            y = y.view(*x.shape[:-1], self.shape[0])
            return y if bias is None else y + bias
        if not torch.is_grad_enabled():
            with torch.autocast(device, enabled=False):
                return F.linear(x, self.dequantize(dtype), bias)
        out: Tensor = _Linear4bitFunction.apply(x, bias, (self.shape, self.block, self.group), *self.get_buffers())  # type: ignore[no-untyped-call]
        return out

    def get_buffers(self) -> QuantBuffers:
        """Return the buffers, floats as their bits."""
        return self.codes, self.scales, self.coarse, self.values, self.steps


@torch.library.custom_op("pretune::copy_after", mutates_args=())
def copy_after(x: Tensor, event: Tensor) -> Tensor:
    """Copy x once `event` is known: for a compiler, which would otherwise compute earlier what depends on x alone.

    Of two equal matrices, dequantized in the forward and in the backward pass, it would keep the first, of all layers.
    """
    return x.clone()


@copy_after.register_fake
def _(x: Tensor, event: Tensor) -> Tensor:
    return torch.empty_like(x)


class _Linear4bitFunction(torch.autograd.Function):
    """A linear layer that saves only its 4-bit weight for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, quant_shape: QuantShape, *buffers: Any) -> Tensor:
        ctx.save_for_backward(*buffers)
        ctx.facts = quant_shape
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x, dequantize(x.dtype, quant_shape, *buffers), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        codes, *tables = ctx.saved_tensors
        if torch.compiler.is_compiling():
            codes = copy_after(codes, grad_output)
        with torch.autocast(grad_output.device.type, enabled=False):
            grad_input = grad_output @ dequantize(grad_output.dtype, ctx.facts, codes, *tables)
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

    def compute_weight(self) -> Tensor:
        """Return the dequantized weight, for an LSTM."""
        return self.weight4.dequantize(torch.float32)


def iter_original_weights(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...], bytes]]:
    """Yield name, shape and sample of every quantized weight, before quantization."""
    for path, module in model.named_modules():
        if isinstance(module, Weight4bit):
            yield path.removesuffix("4"), module.shape, module.sample
