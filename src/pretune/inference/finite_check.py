"""Checks that a model's outputs are finite, so that damaged weights are noticed."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretune.core.errors import NonFiniteError


def check_outputs(values: Tensor | NDArray[Any], noun: str = "outputs") -> None:
    """Raise a NonFiniteError if outputs contain NaN or infinity. Synchronizes with the device."""
    is_finite = bool(torch.isfinite(values).all()) if isinstance(values, Tensor) else bool(np.isfinite(values).all())
    if not is_finite:
        raise make_non_finite_error(noun)


def make_non_finite_error(noun: str) -> NonFiniteError:
    """Build the error of non-finite outputs."""
    return NonFiniteError(
        f"the model's {noun} are not finite: its weights are damaged or diverged; `pretune verify` names the tensor"
    )
