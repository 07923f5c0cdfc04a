"""Weights in 8 bits: each row of a matrix as integers with one scale, in a quarter of the space of float32.

    w[i, j] ~ scale[i] q[i, j],   q in -127 … 127,   scale[i] = max |w[i]| / 127

Vectors, such as those of norms, stay as they are. The file has a name of its own, so that no other library reads the
integers without their scales.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError

if TYPE_CHECKING:
    from pretune.models.tensor_files import TensorInfo

COMPACT_FILE = "model.int8.safetensors"
SCALE = ".row_scale"
"""End of the name of a tensor with the scales of another."""
DTYPE = "I8"
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


def join_scales(infos: Mapping[str, "TensorInfo"]) -> dict[str, "TensorInfo"]:
    """Return the headers of the matrices and vectors, those in 8 bits with their scales: they are read as float32."""
    matrices = {}
    for name, info in infos.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in infos:
            continue
        scale = infos.get(name + SCALE)
        if scale is None:
            matrices[name] = info
            continue
        if info.dtype != DTYPE or scale.dtype != "F32" or scale.shape != info.shape[:1]:
            raise CheckpointError(
                f"{info.file}: tensor {format_value(name)} in 8 bits needs a scale in F32 for each of its rows"
            )
        matrices[name] = info.with_scale(scale)
    return matrices
