"""Representatives of a matrix of cases, and fewer examples of a property: `make test-slow` runs them all."""

import os
from collections.abc import Iterable
from typing import Any

import pytest


def keep_quick(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Return all values as parameters; those not in `quick` are marked slow. A tuple holds several arguments.

    Raises a ValueError if one of `quick` is not among the values.
    """
    values = list(values)
    missing = [value for value in quick if value not in values]
    if missing:
        raise ValueError(f"not among the values: {missing}")
    return [
        value
        if value in quick
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values
    ]


def is_thorough() -> bool:
    """Return whether the tests run with hypothesis' profile "thorough", as in `make test-slow`."""
    return os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def scale_examples(number: int) -> int:
    """Return the number of examples of a property test: all with the profile "thorough", else a fifth."""
    return number if is_thorough() else max(8, number // 5)
