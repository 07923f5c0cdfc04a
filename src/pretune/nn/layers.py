"""Small layers: activations, dropout, norms, the position-wise feed-forward layer, and the input embeddings of a stack.

The token table belongs to the model, because stacks and head may share it; everything else belongs to the stack.

On a CPU, torch's backward of the exact gelu is not vectorized, and its dropout draws at least 32 random bits per
element. Here the derivative is computed in the forward pass by vectorized operations, and four elements share 64 random
bits. In a compiled graph on a GPU, both are bound by arithmetic instead of memory: there dropout hashes the index of an
element instead of running ten Philox rounds, and gelu computes the error function from the exponential that its
derivative needs. Otherwise torch's implementations are used.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pretune.core.config import Fraction, Positive, spec

_PROBABILITY_STEPS = 2**16  # resolution of a probability
_HALF_DTYPES = (torch.bfloat16, torch.float16)


def get_compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of products with `x`: that of autocast, if it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def gelu(x: Tensor) -> Tensor:
    """Compute gelu: x Φ(x) (Hendrycks and Gimpel, 2016)."""
    if _is_fused(x) and x.dtype in _HALF_DTYPES:
        fused_out: Tensor = _FusedGelu.apply(x)  # type: ignore[no-untyped-call]
        return fused_out
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not (torch.is_grad_enabled() and x.requires_grad):
        return F.gelu(x)
    out: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return out


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute the tanh approximation of gelu."""
    if _is_fused(x) and x.dtype in _HALF_DTYPES:
        out: Tensor = _FusedGeluTanh.apply(x)  # type: ignore[no-untyped-call]
        return out
    return F.gelu(x, approximate="tanh")


def dropout(x: Tensor, p: float) -> Tensor:
    """Set elements to zero with probability `p` (in steps of 1/65,536 or finer); scale the others by 1 / (1 - p)."""
    if _is_fused(x) and 0 < p < 1:
        return torch.where(_draw_keep_mask(x, p), x * (1 / (1 - p)), 0)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not 0 < p < 1:
        return F.dropout(x, p)
    out: Tensor = _Dropout.apply(x, p)  # type: ignore[no-untyped-call]
    return out


class Dropout(nn.Dropout):
    """`nn.Dropout` with the function above."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training and self.p > 0 else x


def _is_fused(x: Tensor) -> bool:
    """Return True inside a compiled graph on a GPU."""
    return x.device.type == "cuda" and torch.compiler.is_compiling()


def _draw_keep_mask(x: Tensor, p: float) -> Tensor:
    """Return the mask of kept elements: a hash of their index, with two random seeds, against a threshold."""
    seeds = torch.randint(0, 2**31 - 1, (2,), device=x.device, dtype=torch.int32)
    index = torch.arange(x.numel(), device=x.device, dtype=torch.int32).view(x.shape)
    return hash_bits(index, seeds[0], seeds[1]) >= compute_threshold(p)


def compute_threshold(p: float) -> int:
    """Return the int32 threshold below which a share `p` of all int32 values lies."""
    return round(p * 2**32) - 2**31


def hash_bits(index: Tensor, seed: Tensor, second_seed: Tensor) -> Tensor:
    """Hash each int32 index to 32 bits; the high bits are the best. Multiply and shift, with two seeds.

    NOTE: shifts of signed integers repeat the sign bit, which mixes as well and needs no mask.
    """
    x = (index ^ seed) * 0x7FEB352D
    x = (x ^ (x >> 16) ^ second_seed) * (0x846CA68B - 2**32)
    return (x ^ (x >> 15)) * (0x9E3779B1 - 2**32)


class _FusedGelu(torch.autograd.Function):
    """gelu with Φ approximated by Abramowitz and Stegun, 7.1.26 (error 1.5e-7)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x.float() * _compute_cdf_pdf(x.float())[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        cdf, pdf = _compute_cdf_pdf(x.float())
        return torch.mul(slope.float(), cdf + x.float() * pdf).to(slope.dtype)


def _compute_cdf_pdf(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return Φ(x) and φ(x)."""
    bell = torch.exp(-0.5 * x * x)
    t = 1 / (1 + 0.3275911 * math.sqrt(0.5) * x.abs())
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = 0.5 * series * bell
    return torch.where(x < 0, tail, 1 - tail), bell * (1 / math.sqrt(2 * math.pi))


class _FusedGeluTanh(torch.autograd.Function):
    """gelu_tanh with (1 + tanh u) / 2 as the sigmoid of 2u: one exponential."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x.float() * torch.sigmoid(_compute_tanh_argument(x.float()))).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        x32 = x.float()
        share = torch.sigmoid(_compute_tanh_argument(x32))
        steep = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x32 * x32)
        return torch.mul(slope.float(), share + x32 * share * (1 - share) * steep).to(slope.dtype)


def _compute_tanh_argument(x: Tensor) -> Tensor:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


class _Gelu(torch.autograd.Function):
    """gelu that saves the derivative Φ(x) + x φ(x) instead of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        cdf = torch.erf(x * math.sqrt(0.5)).add_(1).mul_(0.5)  # Φ
        out = x * cdf
        ctx.save_for_backward(cdf.addcmul_(x, (x * x).mul_(-0.5).exp_(), value=1 / math.sqrt(2 * math.pi)))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (derivative,) = ctx.saved_tensors
        return torch.mul(slope, derivative)


class _Dropout(torch.autograd.Function):
    """Dropout that saves the factors: 0 or 1 / (1 - p)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        threshold, count = round(p * _PROBABILITY_STEPS), x.numel()
        bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
        values = bits.view(torch.int16)[:count].view(x.shape)
        keep_mask = values >= threshold - _PROBABILITY_STEPS // 2
        factors = keep_mask.to(x.dtype).mul_(_PROBABILITY_STEPS / max(_PROBABILITY_STEPS - threshold, 1))
        ctx.save_for_backward(factors)
        return x * factors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (factors,) = ctx.saved_tensors
        return slope * factors, None


@spec
class LayerNorm:
    """Layer normalization (Ba et al., 2016), with optional learned `scale` and `bias`."""

    eps: Positive[float] = 1e-5
    scale: bool = True
    bias: bool = True

    def build(self, *, width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=self.eps, elementwise_affine=self.scale, bias=self.bias)

    def params(self, *, width: int) -> int:
        return width * (self.scale + (self.scale and self.bias))


@spec
class RMSNorm:
    """Root mean square normalization (Zhang and Sennrich, 2019): no mean, no bias."""

    eps: Positive[float] = 1e-6
    zero_centered: bool = False  # factors are 1 + weight, so that weight decay pulls them to one

    def build(self, *, width: int) -> nn.Module:
        return (ZeroCenteredRMSNorm if self.zero_centered else nn.RMSNorm)(width, eps=self.eps)

    def params(self, *, width: int) -> int:
        return width


class ZeroCenteredRMSNorm(nn.RMSNorm):
    """RMSNorm that multiplies by 1 + weight."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, 1 + self.weight, self.eps)


Norm = LayerNorm | RMSNorm


@spec
class PerHead:
    """A norm within each head of queries or keys, with the same weights for all heads (Henry et al., 2020)."""

    norm: Norm

    def build(self, *, width: int) -> nn.Module:
        return self.norm.build(width=width)

    def params(self, *, width: int) -> int:
        return self.norm.params(width=width)


ActivationName = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "identity"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


@spec
class FeedForward:
    """Position-wise feed-forward layer: down(act(up(x))).

    With `gated` down(act(gate(x)) * up(x)): GEGLU, SwiGLU (Shazeer, 2020).
    """

    hidden: Positive[int]
    activation: ActivationName = "gelu"
    gated: bool = False
    bias: bool = True
    dropout: Fraction = 0.0  # of the hidden activations

    def build(self, *, width: int) -> "FeedForwardLayer":
        return FeedForwardLayer(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with."""
        return (2 + self.gated) * width * self.hidden

    def params(self, *, width: int) -> int:
        return self.count_weights(width=width) + self.bias * ((1 + self.gated) * self.hidden + width)


class FeedForwardLayer(nn.Module):
    def __init__(self, spec: FeedForward, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, spec.hidden, bias=spec.bias)
        self.gate = nn.Linear(width, spec.hidden, bias=spec.bias) if spec.gated else None
        self.down = nn.Linear(spec.hidden, width, bias=spec.bias)
        self.activate = ACTIVATIONS[spec.activation]
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activate(self.up(x)) if self.gate is None else self.activate(self.gate(x)) * self.up(x)
        out: Tensor = self.down(self.dropout(hidden))
        return out


@spec
class Factor:
    """Factorized embeddings: a narrower token table and a projection to the width (Lan et al., 2020)."""

    width: Positive[int]
    bias: bool = True
    input: Literal["tokens", "sum", "norm"] = "norm"  # projected: the tokens, their sum with positions, or its norm


@spec
class Embed:
    """Embedding settings: segments, languages, scale, norm, factorization, dropout."""

    segments: Positive[int] | None = None
    languages: Positive[int] | None = None  # read from the segments of a batch, if it has any
    scale: bool = False  # multiply tokens by sqrt(width)
    norm: Norm | None = None
    factor: Factor | None = None
    dropout: Fraction = 0.0

    def build(self, *, width: int) -> "Embeddings":
        return Embeddings(self, width)

    def get_inner_width(self, *, width: int) -> int:
        """Return the width of positions and segments."""
        return self.factor.width if self.factor and self.factor.input != "tokens" else width

    def get_norm_width(self, *, width: int) -> int:
        """Return the width of the norm."""
        return self.factor.width if self.factor and self.factor.input == "norm" else width

    def get_table_width(self, *, width: int) -> int:
        """Return the width of the token table."""
        return self.factor.width if self.factor else width

    def params(self, *, width: int) -> int:
        inner = self.get_inner_width(width=width)
        norm_width = self.get_norm_width(width=width)
        count = ((self.segments or 0) + (self.languages or 0)) * inner
        count += self.norm.params(width=norm_width) if self.norm else 0
        return count + (self.factor.width * width + self.factor.bias * width if self.factor else 0)


class Embeddings(nn.Module):
    def __init__(self, spec: Embed, width: int) -> None:
        super().__init__()
        inner = spec.get_inner_width(width=width)
        self.scale = math.sqrt(width) if spec.scale else 1.0
        self.projected = spec.factor.input if spec.factor else None
        self.segments = nn.Embedding(spec.segments, inner) if spec.segments else None
        self.languages = nn.Embedding(spec.languages, inner) if spec.languages else None
        self.norm = spec.norm.build(width=spec.get_norm_width(width=width)) if spec.norm else None
        self.project = nn.Linear(spec.factor.width, width, bias=spec.factor.bias) if spec.factor else None
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor, positions: Tensor | None, segments: Tensor | None) -> Tensor:
        """Return the block input `[N, W]` of token embeddings `[N, table]`; adds position embeddings, if given."""
        x = x * self.scale if self.scale != 1.0 else x
        if self.project is not None and self.projected == "tokens":
            x = self.project(x)
        if positions is not None:
            x = x + positions.to(x.dtype)
        if self.segments is not None:
            is_single = segments is None or self.segments.num_embeddings == 1  # RoBERTa: one row for all segments
            x = x + (self.segments.weight[0] if is_single else self.segments(segments))
        if self.languages is not None and segments is not None:
            x = x + self.languages(segments)
        if self.project is not None and self.projected == "sum":
            x = self.project(x)
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x)
        if self.project is not None and self.projected == "norm":
            x = self.project(x)
        return x


class OffsetEmbedding(nn.Module):
    """A token table that is the one of another model, without its gradient, plus offsets (He et al., 2023).

    The other model's training moves both tables; this model's training moves the `offset` only, which starts at zero.
    """

    def __init__(self, base: nn.Embedding, offset: Tensor) -> None:
        super().__init__()
        self._base = [base]  # in a list: its parameters belong to the other model
        self.offset = nn.Parameter(offset)

    @property
    def weight(self) -> Tensor:
        """The sum: the table of this model."""
        return self._base[0].weight.detach() + self.offset

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self._base[0].weight.detach()) + F.embedding(tokens, self.offset)

    @torch.no_grad()
    def assign(self, weight: Tensor) -> None:
        """Set the offsets so that the table is `weight`."""
        self.offset.copy_(weight.to(self.offset) - self._base[0].weight)
