"""Weight-only quantization for inference: the linear layers of the blocks in 8 or 4 bits.

    model = pt.load("runs/gpt2", quantize="int8")

int8 keeps a scale per output, so that a weight is within 1/254 of the largest of its row; nf4 is QLoRA's format
(`peft.qlora`). Embeddings, norms, biases, vocabulary head and task head stay as they are. Activations are not
quantized: products are computed in their precision, those of a few rows on an x86-64 processor in bfloat16.
"""

import platform
from collections.abc import Callable
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.peft.base import TARGETS, find_linears
from pretune.adaptation.peft.qlora import Linear4bit, Weight4bit
from pretune.core.errors import UsageError, suggest
from pretune.core.machine import release_memory
from pretune.models.model import LanguageModel
from pretune.nn.quantized_products import is_supported, multiply_int8

Quantization = Literal["int8", "nf4"]
QUANTIZATIONS: tuple[str, ...] = get_args(Quantization)
FEW_ROWS = 8
"""Tokens up to which a CPU multiplies int8 weights with torch's kernel; for more, dequantizing is faster."""

KERNEL_INPUTS = 64
"""Inputs of a layer must be a multiple of this for torch's kernel in bfloat16."""


class Linear8bit(nn.Module):
    """A linear layer with weights `[out, in]` of one byte and a scale per output; its bias is unchanged."""

    is_adapter: ClassVar[bool] = True  # attention calls the layer, instead of reading its weight
    codes: Tensor
    scales: Tensor
    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        scales = weight.abs().amax(1) / 127
        codes = torch.round(weight / torch.where(scales > 0, scales, 1.0)[:, None]).to(torch.int8)
        self.register_buffer("codes", codes)
        # The bits of fp32, so that `model.half()` does not round them.
        self.register_buffer("scales", scales.view(torch.int32))
        self.register_parameter("bias", linear.bias)
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """Compute W x + bias, in autocast's precision if it is enabled."""
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        x, scales = x.to(dtype), self.scales.view(torch.float32)
        with torch.autocast(device, enabled=False):
            if device == "cpu" and dtype == torch.float32 and x.numel() <= FEW_ROWS * self.in_features:
                flat = x.reshape(-1, self.in_features)
                y = _multiply_few(flat, self.codes, scales).view(*x.shape[:-1], self.out_features)
            elif is_supported(x, self.in_features):
                y = multiply_int8(x.reshape(-1, self.in_features), self.codes, scales)
                y = y.view(*x.shape[:-1], self.out_features)
            else:
                y = F.linear(x, self.codes.to(dtype)) * scales.to(dtype)
        return y if self.bias is None else y + self.bias.to(dtype)

    def compute_weight(self) -> Tensor:
        """Return the dequantized weight, for an LSTM."""
        return self.codes.float() * self.scales.view(torch.float32)[:, None]


def quantize_model(model: LanguageModel | ModelWithHead, kind: Quantization) -> None:
    """Quantize the linear layers of the blocks, in place; the model can then be used, but not trained or saved.

    Raises:
        UsageError: unknown kind.
    """
    check_quantization(kind)
    body = model.model if isinstance(model, ModelWithHead) else model
    for _, owner, name, linear in [*find_linears(body, TARGETS)]:
        if isinstance(linear, nn.Linear):
            setattr(owner, name, Linear8bit(linear) if kind == "int8" else Linear4bit(linear))
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def _multiply_few(rows: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Multiply a few rows in fp32 with int8 weights on a CPU, by torch's kernel.

    NOTE: on x86-64 it is fast in bfloat16 only: a tenth of the time, half of that of weights in fp32. Its sums are in
    fp32; rounding adds 0.2 % to the 0.7 % of int8. It reads beyond the ends of rows whose length does not suit it.
    """
    if platform.machine() != "x86_64" or codes.shape[1] % KERNEL_INPUTS:
        return torch._weight_int8pack_mm(rows, codes, scales)
    ones = torch.ones(len(scales), dtype=torch.bfloat16)
    return torch._weight_int8pack_mm(rows.bfloat16(), codes, ones).float() * scales


def check_quantization(kind: str) -> None:
    """Raise a UsageError for an unknown kind."""
    if kind not in QUANTIZATIONS:
        raise UsageError(
            f"quantize: unknown kind '{str(kind)[:40]}'{suggest(str(kind), QUANTIZATIONS)} (allowed: int8, nf4)"
        )


def build_weight_quantizer(kind: Quantization) -> Callable[[LanguageModel, str], None]:
    """Return a function that quantizes a linear layer of the blocks as soon as its weights are loaded.

    The weights of a whole model are then never in memory at once.
    """
    places: dict[str, tuple[nn.Module, str]] = {}

    def quantize_layer(model: LanguageModel, weight: str) -> None:
        if not places:
            places.update({path: (owner, name) for path, owner, name, _ in find_linears(model, TARGETS)})
        owner, name = places.get(weight.rpartition(".")[0], (model, ""))
        linear = getattr(owner, name, None)
        if type(linear) is nn.Linear and not any(parameter.is_meta for parameter in linear.parameters()):
            setattr(owner, name, Linear8bit(linear) if kind == "int8" else Linear4bit(linear))
            release_memory()  # of the weights in fp32, or they leave gaps

    return quantize_layer


def is_quantized(model: nn.Module) -> bool:
    """Return whether `quantize_model` has changed a model."""
    return any(isinstance(module, Linear8bit | Linear4bit) for module in model.modules())


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, those of quantized layers included."""
    count = sum(parameter.numel() for parameter in model.parameters())
    for module in model.modules():
        if isinstance(module, Weight4bit):
            count += module.shape[0] * module.shape[1]
        elif isinstance(module, Linear8bit):
            count += module.codes.numel()
    return count


def count_bytes(model: nn.Module) -> int:
    """Return the bytes of all weights, shared ones counted once."""
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensors.values())
