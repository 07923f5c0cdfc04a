"""Linear layers of the blocks with products in fp8 (Micikevicius et al., 2022): `train.precision=fp8`.

    y = x Wᵀ + b        x and W in e4m3
    dx = g W            g in e5m2
    dW = gᵀ x           from the same three fp8 tensors, accumulated and returned in fp32

Scaling is dynamic and per tensor: each tensor is multiplied by limit / max|x| before it is rounded, and its product is
divided by it again. There is no state, so checkpoints are those of bf16 and a resumed run has the same bits. Weights
stay fp32 and the optimizer updates these. Embeddings, norms, softmax, positions, poolers, vocabulary and task heads and
recurrent layers keep the precision of autocast, as do layers and batches whose dimensions are not multiples of 16, and
every product outside training: validation is that of the model that is saved.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.errors import ResourceError, UsageError

FORWARD_DTYPE, GRADIENT_DTYPE = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16
"""Dimensions of a product must be multiples of it."""
MIN_CAPABILITY = (8, 9)
"""Compute capability of the first GPUs with products in fp8 (Ada; Hopper is 9.0)."""
PRODUCTS = ("q", "k", "v", "out", "up", "gate", "down")
"""Names of the layers of attention and feed-forward that are converted."""
_MIN_PEAK = 1e-30  # of a tensor of zeros; the scale of any value above is finite in fp32


def check_device(device: torch.device) -> None:
    """Raise `ResourceError` for a device without products in fp8."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY:
        return
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    raise ResourceError(
        f"train.precision=fp8 needs a GPU of compute capability 8.9 or newer, this device is '{name}'; use bf16"
    )


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Round a tensor to fp8, scaled so that its largest value is the largest of the type; return it and 1 / scale."""
    limit = torch.finfo(dtype).max
    # NOTE: the maximum of each row first: compiled, it is part of the kernel that computes x.
    peak = x.abs().amax(-1).amax().float().clamp(min=_MIN_PEAK)
    return (x.float() * (limit / peak)).clamp(-limit, limit).to(dtype), peak / limit


class _Fp8Product(torch.autograd.Function):
    """x Wᵀ + b of bf16 `x` `[N, in]`, and its gradients, as three products in fp8."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x8, x_scale = quantize(x, FORWARD_DTYPE)
        weight8, weight_scale = quantize(weight, FORWARD_DTYPE)
        ctx.save_for_backward(x8, x_scale, weight8, weight_scale)
        ctx.weight_dtype, ctx.bias_dtype = weight.dtype, None if bias is None else bias.dtype
        bias = None if bias is None else bias.to(x.dtype)
        # Sums of the forward pass may be kept in the precision of the tensor cores, those of gradients may not.
        return torch._scaled_mm(
            x8, weight8.t(), x_scale, weight_scale, bias=bias, out_dtype=x.dtype, use_fast_accum=True
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x8, x_scale, weight8, weight_scale = ctx.saved_tensors
        gradient8, scale = quantize(gradient, GRADIENT_DTYPE)
        x_gradient = weight_gradient = bias_gradient = None
        # NOTE: the first factor must be row-major and the second column-major.
        if ctx.needs_input_grad[0]:
            columns = weight8.t().contiguous().t()
            x_gradient = torch._scaled_mm(gradient8, columns, scale, weight_scale, out_dtype=gradient.dtype)
        if ctx.needs_input_grad[1]:
            rows, columns = gradient8.t().contiguous(), x8.t().contiguous().t()
            weight_gradient = torch._scaled_mm(rows, columns, scale, x_scale, out_dtype=ctx.weight_dtype)
        if ctx.needs_input_grad[2]:
            bias_gradient = gradient.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return x_gradient, weight_gradient, bias_gradient


class Fp8Linear(nn.Linear):
    """A linear layer whose products run in fp8 in training, and as usual otherwise; weights and their names are kept.

    Attention calls `multiply` with the stacked weights of several layers.
    """

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> "Fp8Linear":
        """Return a layer that shares the weights of `linear`."""
        layer = cls(linear.in_features, linear.out_features, bias=False, device="meta")
        layer.weight, layer.bias = linear.weight, linear.bias
        return layer.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.weight, self.bias)

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x Wᵀ + b, in fp8 if the layer is trained and the number of tokens allows it.

        The result is in bf16 under autocast, else in the dtype of x.
        """
        tokens = x.numel() // x.shape[-1]
        if not self.training or tokens == 0 or tokens % MULTIPLE:
            return F.linear(x, weight, bias)
        rows = x.reshape(tokens, -1).to(torch.bfloat16)
        product: Tensor = _Fp8Product.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
        product = product if torch.is_autocast_enabled(x.device.type) else product.to(x.dtype)
        return product.view(*x.shape[:-1], -1)


def convert_linears(model: nn.Module) -> int:
    """Replace the linear layers of attention and feed-forward in place; return their number.

    Raises:
        UsageError: no layer can be converted: a recurrent model, adapters, or widths that are no multiples of 16.
    """
    from pretune.nn.attention import MultiHeadAttention
    from pretune.nn.layers import FeedForwardLayer
    from pretune.nn.relative_attention import RelativeAttentionLayer

    owners = MultiHeadAttention | RelativeAttentionLayer | FeedForwardLayer
    count = 0
    for owner in [module for module in model.modules() if isinstance(module, owners)]:
        for name in PRODUCTS:
            layer = getattr(owner, name, None)
            if isinstance(layer, nn.Linear) and not (layer.in_features % MULTIPLE or layer.out_features % MULTIPLE):
                setattr(owner, name, Fp8Linear.from_linear(layer))
                count += 1
    if not count:
        raise UsageError(
            "train.precision=fp8: no linear layer of this model has products in fp8 (attention or feed-forward, with "
            "dimensions that are multiples of 16); use bf16"
        )
    return count
