"""Range checks of hyperparameters."""

from pretune.core.errors import UsageError


def check_positive(**values: float) -> None:
    """Raise a UsageError for values <= 0."""
    for name, value in values.items():
        if not value > 0:
            raise UsageError(f"{name} must be > 0, got {value}")


def check_not_negative(**values: float) -> None:
    """Raise a UsageError for values < 0."""
    for name, value in values.items():
        if not value >= 0:
            raise UsageError(f"{name} must be >= 0, got {value}")


def check_below_one(**values: float) -> None:
    """Raise a UsageError for values outside [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise UsageError(f"{name} must be >= 0 and < 1, got {value}")
