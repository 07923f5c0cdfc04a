"""Memory layout of weights for matrix products on a CPU."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

MIN_CHARACTERS = 20_000
"""Minimum characters of input for which transposing the weights pays off."""


@contextlib.contextmanager
def column_major_weights(model: nn.Module, characters: int) -> Iterator[None]:
    """Store the weights of linear layers on a CPU by columns inside the block; values are unchanged.

    The product with the transposed weight, as in a linear layer, then reads memory in order: 10 % faster on some
    processors. The weights take twice the memory meanwhile.
    """
    layers = [module for module in model.modules() if type(module) is nn.Linear and _is_eligible(module.weight)]
    original_data = [(module.weight, module.weight.data) for module in layers] if characters >= MIN_CHARACTERS else []
    try:
        for weight, data in original_data:
            weight.data = data.t().contiguous().t()
        yield
    finally:
        for weight, data in original_data:
            weight.data = data


def _is_eligible(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous()
