"""Where the numbers of an optimiser may lie."""

from pretune.core.errors import UsageError


def check_positive(**values: float) -> None:
    """Refuse what is not above zero."""
    for name, value in values.items():
        if not value > 0:
            raise UsageError(f"{name} {value} must be greater than 0")


def check_not_negative(**values: float) -> None:
    """Refuse what is below zero."""
    for name, value in values.items():
        if not value >= 0:
            raise UsageError(f"{name} {value} must be at least 0")


def check_below_one(**values: float) -> None:
    """Refuse what does not lie in [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise UsageError(f"{name} {value} must be at least 0 and below 1")
