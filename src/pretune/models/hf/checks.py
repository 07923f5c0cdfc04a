"""Checks of values in a Hugging Face config. Errors use the names of the file's keys, not ours."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError

MAX_SIZE = 2**31 - 1
"""Largest size; a file with a larger one is damaged or hostile."""

Check = Callable[[str, Any], Any]
"""Takes a key and its value; returns the checked value or raises `CheckpointError`."""


def check_size(key: str, value: Any) -> int:
    """Return a size: an integer of at least 1."""
    if type(value) is not int or not 1 <= value <= MAX_SIZE:
        raise _make_invalid_error(key, value, f"an integer from 1 to {MAX_SIZE}")
    return value


def check_number(key: str, value: Any) -> float:
    """Return a finite number of at least 0."""
    if type(value) not in (int, float) or not 0 <= value <= 1e30:
        raise _make_invalid_error(key, value, "a number of at least 0")
    return float(value)


def check_positive(key: str, value: Any) -> float:
    """Return a finite number greater than 0."""
    if type(value) not in (int, float) or not 0 < value <= 1e30:
        raise _make_invalid_error(key, value, "a number greater than 0")
    return float(value)


def check_rate(key: str, value: Any) -> float:
    """Return a rate between 0 and 1, such as a dropout."""
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise _make_invalid_error(key, value, "a number from 0 to 1")
    return float(value)


def check_flag(key: str, value: Any) -> bool:
    """Return a boolean."""
    if type(value) is not bool:
        raise _make_invalid_error(key, value, "true or false")
    return value


def allow_null(check: Check) -> Check:
    """Return a check that also accepts null."""
    return lambda key, value: None if value is None else check(key, value)


def check_token(key: str, value: Any) -> int | None:
    """Return a token id, or None for null."""
    if value is None or (type(value) is int and value == -1):  # NOTE: -1 means none in some early releases
        return None
    if type(value) is not int or not 0 <= value <= MAX_SIZE:
        raise _make_invalid_error(key, value, "a token id or null")
    return value


def read_key(hf_config: Mapping[str, Any], *names: str, check: Check, default: Any) -> Any:
    """Return the checked value of a key under any of its names, or `default` if all are absent.

    Raises `CheckpointError` if several names are present with different values; null is ignored.
    """
    values = {name: check(name, hf_config[name]) for name in names if name in hf_config}
    non_null = {name: value for name, value in values.items() if value is not None}
    first = next(iter(non_null), None)
    for name, value in non_null.items():
        if first is not None and value != non_null[first]:
            raise CheckpointError(
                f"keys '{first}' = {format_value(hf_config[first])} and '{name}' = {format_value(hf_config[name])} "
                "contradict each other"
            )
    return default if not values else None if first is None else non_null[first]


def read_object(hf_config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the fields of an object under their full names, such as `attn_config.clip_qkv`; none for null."""
    value = hf_config.get(key)
    if value is not None and not isinstance(value, dict):
        raise _make_invalid_error(key, value, "an object")
    return {f"{key}.{name}": inner for name, inner in (value or {}).items()}


def check_choice(key: str, value: Any, options: Mapping[str, Any]) -> Any:
    """Return our name for one of theirs."""
    if not isinstance(value, str) or value not in options:
        raise make_unsupported_error(key, value, options)
    return options[value]


def make_unsupported_error(key: str, value: Any, choices: Iterable[Any]) -> CheckpointError:
    """Return the error for an unsupported value, with the allowed ones."""
    allowed_values = ", ".join(format_value(choice) for choice in choices)
    return CheckpointError(f"key '{key}' = {format_value(value)} is not supported; allowed: {allowed_values}")


def _make_invalid_error(key: str, value: Any, requirement: str) -> CheckpointError:
    return CheckpointError(f"key '{key}' = {format_value(value)}: must be {requirement}")
