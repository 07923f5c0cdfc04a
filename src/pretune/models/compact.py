"""Weights in 8 bits: each row of a matrix as integers with one scale, in a quarter of the space of float32.

    w[i, j] ~ scale[i] q[i, j],   q in -127 … 127,   scale[i] = max |w[i]| / 127

Vectors, such as those of norms, stay as they are. The file has a name of its own, so that no other library reads the
integers without their scales.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

COMPACT_FILE = "model.int8.safetensors"
SCALE = ".row_scale"
"""End of the name of a tensor with the scales of another."""
LARGEST = 127


def quantize_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix as integers, and the scales of its rows."""
    scales = matrix.float().abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
    return (matrix.float() / scales[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8), scales


def restore_rows(integers: Tensor, scales: Tensor) -> Tensor:
    """Return the matrix of integers and scales in float32."""
    return integers.float() * scales[:, None]


def compress(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with matrices in 8 bits and their scales beside them; all others unchanged."""
    small: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and tensor.is_floating_point():
            small[name], small[name + SCALE] = quantize_rows(tensor)
        else:
            small[name] = tensor
    return small
