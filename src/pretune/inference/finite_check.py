"""Checks that a model's outputs are numbers: damaged weights must not pass for answers."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretune.core.errors import NonFiniteError


def check_outputs(values: Tensor | NDArray[Any], noun: str = "outputs") -> None:
    """Refuse outputs of a model that hold NaN or infinity. Waits for the device."""
    finite = bool(torch.isfinite(values).all()) if isinstance(values, Tensor) else bool(np.isfinite(values).all())
    if not finite:
        raise make_non_finite_error(noun)


def make_non_finite_error(noun: str) -> NonFiniteError:
    """Return the error to raise."""
    return NonFiniteError(
        f"the model's {noun} are not finite: its weights are damaged or diverged; `pretune verify` names the tensor"
    )
