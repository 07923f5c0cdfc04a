"""Weight-only quantization for inference: the linear layers of the blocks in 8 or 4 bits.

    model = pt.load("runs/gpt2", quantize="int8")

int8 keeps a scale per output, so that a weight is within 1/254 of the largest of its row; nf4 is QLoRA's format
(`peft.qlora`). int4 is for x86-64 processors: 16 values from the least to the greatest of 32 weights, those of a file
in Q4_1; layers that torch's kernel does not suit have int8. On a CPU, int8 and int4 reduce the token table and the
vocabulary matrix of a decoder, too, which a step reads as a whole; elsewhere embeddings and vocabulary head stay as
they are, as norms, biases and task head do. Activations are not quantized: products are computed in their precision,
those of a few rows on an x86-64 processor in bfloat16, as all of int4.
"""

import platform
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils._pytree import tree_map_only

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.peft.base import TARGETS, find_linears
from pretune.adaptation.peft.qlora import Linear4bit, Weight4bit
from pretune.core.errors import UsageError, suggest
from pretune.core.machine import release_memory
from pretune.models.model import LanguageModel
from pretune.nn.heads import VocabularyHead
from pretune.nn.quantized_products import is_supported, multiply_int8

Quantization = Literal["int8", "int4", "nf4"]
QUANTIZATIONS: tuple[str, ...] = get_args(Quantization)
FEW_ROWS = 8
"""Tokens up to which a CPU multiplies int8 weights with torch's kernel; for more, dequantizing is faster."""

TABLES = ("tokens", "head")
"""Modules of a model whose weight has a row for each token."""
INT4_GROUP = 32
"""Inputs of an output that share a scale in int4."""
ROUNDED_ROWS = 1024
"""Rows of a weight that are rounded at a time."""
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
        codes, scales = _round_rows(linear.weight.detach().float())
        self.register_buffer("codes", codes)
        # The bits of fp32, so that `model.half()` does not round them.
        self.register_buffer("scales", scales.view(torch.int32))
        self.register_parameter("bias", linear.bias)
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """Compute W x + bias, in autocast's precision if it is enabled."""
        y = _multiply(x, self.codes, self.scales.view(torch.float32))
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def compute_weight(self) -> Tensor:
        """Return the dequantized weight, for an LSTM."""
        return self.codes.float() * self.scales.view(torch.float32)[:, None]


class LinearInt4(nn.Module):
    """A linear layer with weights of 4 bits, of which 32 inputs of an output share a scale and the value of code 8."""

    is_adapter: ClassVar[bool] = True
    codes: Tensor
    scales: Tensor
    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        groups = linear.weight.detach().view(self.out_features, -1, INT4_GROUP)
        low, high = groups.aminmax(dim=-1, keepdim=True)
        steps = (high - low) / 15
        codes = torch.round((groups - low) / torch.where(steps > 0, steps, 1.0)).to(torch.int32)
        self.register_buffer("codes", torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.flatten(1), 1))
        scales = torch.cat((steps, low + 8 * steps), dim=-1).transpose(0, 1).contiguous()  # [in / 32, out, 2]
        self.register_buffer("scales", scales.bfloat16().view(torch.int16))  # bits, as above
        self.register_parameter("bias", linear.bias)
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """Compute W x + bias in bfloat16, with sums in float32."""
        rows, scales = x.reshape(-1, self.in_features).bfloat16(), self.scales.view(torch.bfloat16)
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.codes, INT4_GROUP, scales)
        y = y.to(x.dtype).view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def compute_weight(self) -> Tensor:
        """Return the dequantized weight."""
        with torch.no_grad():
            weight: Tensor = self(torch.eye(self.in_features)).T
        return weight if self.bias is None else weight - self.bias[:, None]


class Table8bit(Tensor):
    """A matrix `[V, W]` with a row for each token, of one byte a weight and a scale per row.

    Embedding and the product with a few states read the bytes; any other operation sees the dequantized matrix.
    """

    codes: Tensor
    scales: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scales: Tensor) -> "Table8bit":
        table: Table8bit = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scales.dtype, device=codes.device)
        table.codes, table.scales = codes, scales
        return table

    def dequantize(self) -> Tensor:
        """Return the matrix in float32."""
        return self.codes.float() * self.scales[:, None]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        table = args[1] if len(args) > 1 else None
        if func is Tensor.detach:  # a parameter is made from it
            return args[0]
        if func is F.embedding and isinstance(table, cls):
            return F.embedding(args[0], table.codes).float() * table.scales[args[0]][..., None]
        if func is F.linear and isinstance(table, cls):
            y, bias = _multiply(args[0], table.codes, table.scales), args[2] if len(args) > 2 else None
            return y if bias is None else y + bias.to(y.dtype)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        matrix_args, matrix_kwargs = tree_map_only(cls, cls.dequantize, (args, kwargs or {}))
        return func(*matrix_args, **matrix_kwargs)


def quantize_model(model: LanguageModel | ModelWithHead, kind: Quantization) -> None:
    """Quantize the linear layers of the blocks, in place; the model can then be used, but not trained or saved.

    Raises:
        UsageError: unknown kind.
    """
    check_quantization(kind)
    body = model.model if isinstance(model, ModelWithHead) else model
    for _, owner, name, linear in [*find_linears(body, TARGETS)]:
        if isinstance(linear, nn.Linear):
            setattr(owner, name, _quantize_linear(linear, kind))
    if kind != "nf4":
        for table in TABLES:
            _quantize_table(body, table)
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def _quantize_linear(linear: nn.Linear, kind: Quantization) -> nn.Module:
    """Return the quantized layer: of int4 where torch's kernel suits it."""
    if kind == "nf4":
        return Linear4bit(linear)
    is_suitable = linear.in_features % KERNEL_INPUTS == 0 and linear.out_features % KERNEL_INPUTS == 0
    has_type = linear.weight.device.type == "cpu" and linear.weight.dtype == torch.float32
    is_int4 = kind == "int4" and is_suitable and has_type and platform.machine() == "x86_64"
    return (LinearInt4 if is_int4 else Linear8bit)(linear)


def _quantize_table(model: LanguageModel, path: str) -> None:
    """Quantize the token table or the vocabulary matrix of a decoder on a CPU, if torch's kernel suits it."""
    owner: nn.Module | None = getattr(model, path)
    weight = getattr(owner, "weight", None)
    is_suitable = model.spec.shape == "decoder" and isinstance(owner, nn.Embedding | VocabularyHead)
    if (
        owner is None
        or not is_suitable
        or not isinstance(weight, Parameter)
        or weight.is_meta
        or isinstance(weight, Table8bit)
    ):
        return
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and has_kernel(weight.shape[1]):
        owner.weight = Parameter(Table8bit(*_round_rows(weight.detach())), requires_grad=False)


def _round_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of a weight `[out, in]` and the scale of each row."""
    # NOTE: a part's temporaries are freed before the next ones: a list of results between them would spread the heap.
    codes, scales = torch.empty_like(weight, dtype=torch.int8), weight.new_empty(len(weight))
    parts = (torch.split(tensor, ROUNDED_ROWS) for tensor in (weight, codes, scales))
    for rows, target, scale in zip(*parts, strict=True):
        torch.div(rows.abs().amax(1), 127, out=scale)
        target.copy_(torch.round(rows / torch.where(scale > 0, scale, 1.0)[:, None]))
    return codes, scales


def _multiply(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Multiply states `[..., in]` with int8 weights, in autocast's precision if it is enabled."""
    device, (outputs, inputs) = x.device.type, codes.shape
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    x = x.to(dtype)
    with torch.autocast(device, enabled=False):
        if device == "cpu" and dtype == torch.float32 and x.numel() <= FEW_ROWS * inputs:
            return _multiply_few(x.reshape(-1, inputs), codes, scales).view(*x.shape[:-1], outputs)
        if is_supported(x, inputs):
            y: Tensor = multiply_int8(x.reshape(-1, inputs), codes, scales)
            return y.view(*x.shape[:-1], outputs)
        return F.linear(x, codes.to(dtype)) * scales.to(dtype)


def has_kernel(inputs: int) -> bool:
    """Return whether torch has a fast kernel for int8 weights with so many inputs on this processor."""
    return platform.machine() != "x86_64" or inputs % KERNEL_INPUTS == 0


def _multiply_few(rows: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Multiply a few rows in fp32 with int8 weights on a CPU, by torch's kernel.

    NOTE: on x86-64 it is fast in bfloat16 only: a tenth of the time, half of that of weights in fp32. Its sums are in
    fp32; rounding adds 0.2 % to the 0.7 % of int8. It reads beyond the ends of rows whose length does not suit it.
    """
    if platform.machine() != "x86_64" or not has_kernel(codes.shape[1]):
        return torch._weight_int8pack_mm(rows, codes, scales)
    return torch._weight_int8pack_mm(rows.bfloat16(), codes, _make_ones(len(scales))) * scales


@lru_cache(maxsize=16)
def _make_ones(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.bfloat16)


def check_quantization(kind: str) -> None:
    """Raise a UsageError for an unknown kind."""
    if kind not in QUANTIZATIONS:
        hint = suggest(str(kind), QUANTIZATIONS)
        raise UsageError(f"quantize: unknown kind '{str(kind)[:40]}'{hint} (allowed: {', '.join(QUANTIZATIONS)})")


def build_weight_quantizer(kind: Quantization) -> Callable[[LanguageModel, str], None]:
    """Return a function that quantizes a linear layer of the blocks as soon as its weights are loaded.

    The weights of a whole model are then never in memory at once.
    """
    places: dict[str, tuple[nn.Module, str]] = {}

    def quantize_layer(model: LanguageModel, weight: str) -> None:
        if not places:
            places.update({path: (owner, name) for path, owner, name, _ in find_linears(model, TARGETS)})
        if kind != "nf4" and (table := weight.removesuffix(".weight")) in TABLES:
            _quantize_table(model, table)
            release_memory()
        owner, name = places.get(weight.rpartition(".")[0], (model, ""))
        linear = getattr(owner, name, None)
        if type(linear) is nn.Linear and not any(parameter.is_meta for parameter in linear.parameters()):
            setattr(owner, name, _quantize_linear(linear, kind))
            release_memory()  # of the weights in fp32, or they leave gaps

    return quantize_layer


def is_quantized(model: nn.Module) -> bool:
    """Return whether `quantize_model` has changed a model."""
    return any(isinstance(module, Linear8bit | LinearInt4 | Linear4bit) for module in model.modules())


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, those of quantized layers included."""
    count = sum(parameter.numel() for parameter in model.parameters())
    for module in model.modules():
        if isinstance(module, Weight4bit):
            count += module.shape[0] * module.shape[1]
        elif isinstance(module, Linear8bit | LinearInt4):
            count += module.in_features * module.out_features
    return count


def count_bytes(model: nn.Module) -> int:
    """Return the bytes of all weights, shared ones counted once."""
    tensors: list[Tensor] = []
    for tensor in (*model.parameters(), *model.buffers()):
        tensors += (tensor.codes, tensor.scales) if isinstance(tensor, Table8bit) else (tensor,)
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
