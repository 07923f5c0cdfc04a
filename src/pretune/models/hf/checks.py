"""What a stranger's config gives for a key, checked by kind and refused by the key's name.

The words of the file are used, not ours: whoever reads the error has the file before them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError

MAX_SIZE = 2**31 - 1
"""No size is larger; a file that says so is damaged or hostile."""

Check = Callable[[str, Any], Any]
"""Takes a key and what a file gives for it, and returns the value or refuses it by the key's name."""


def check_size(key: str, value: Any) -> int:
    """How many or how wide: a whole number, at least one."""
    if type(value) is not int or not 1 <= value <= MAX_SIZE:
        raise _make_invalid_error(key, value, f"a whole number from 1 to {MAX_SIZE}")
    return value


def check_number(key: str, value: Any) -> float:
    """Any finite number that is not negative."""
    if type(value) not in (int, float) or not 0 <= value <= 1e30:
        raise _make_invalid_error(key, value, "a number of at least 0")
    return float(value)


def check_positive(key: str, value: Any) -> float:
    """Any finite number above zero."""
    if type(value) not in (int, float) or not 0 < value <= 1e30:
        raise _make_invalid_error(key, value, "a number greater than 0")
    return float(value)


def check_rate(key: str, value: Any) -> float:
    """A share, such as that of what dropout drops."""
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise _make_invalid_error(key, value, "a number from 0 to 1")
    return float(value)


def check_flag(key: str, value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise _make_invalid_error(key, value, "true or false")
    return value


def allow_null(check: Check) -> Check:
    """The same, or null."""
    return lambda key, value: None if value is None else check(key, value)


def check_token(key: str, value: Any) -> int | None:
    """A token's id, or null."""
    if value is None or (type(value) is int and value == -1):  # NOTE: -1 means none in some early releases
        return None
    if type(value) is not int or not 0 <= value <= MAX_SIZE:
        raise _make_invalid_error(key, value, "a token's id or null")
    return value


def read_key(hf_config: Mapping[str, Any], *names: str, check: Check, default: Any) -> Any:
    """What a file gives for a key under any of its names, checked; the default where it gives nothing.

    Several names must not contradict each other; null does not.
    """
    given = {name: check(name, hf_config[name]) for name in names if name in hf_config}
    stated = {name: value for name, value in given.items() if value is not None}
    first = next(iter(stated), None)
    for name, value in stated.items():
        if first is not None and value != stated[first]:
            raise CheckpointError(
                f"keys '{first}' = {format_value(hf_config[first])} and '{name}' = {format_value(hf_config[name])} contradict each other"
            )
    return default if not given else None if first is None else stated[first]


def read_object(hf_config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The fields of an object under their full names, such as `attn_config.clip_qkv`; of null none."""
    value = hf_config.get(key)
    if value is not None and not isinstance(value, dict):
        raise _make_invalid_error(key, value, "an object")
    return {f"{key}.{name}": inner for name, inner in (value or {}).items()}


def check_choice(key: str, value: Any, options: Mapping[str, Any]) -> Any:
    """Our word for one of theirs."""
    if not isinstance(value, str) or value not in options:
        raise make_unsupported_error(key, value, options)
    return options[value]


def make_unsupported_error(key: str, value: Any, allowed: Iterable[Any]) -> CheckpointError:
    """The error that refuses a value by its key and says which there are."""
    return CheckpointError(
        f"key '{key}' = {format_value(value)} is not supported; allowed: {', '.join(format_value(option) for option in allowed)}"
    )


def _make_invalid_error(key: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"key '{key}' = {format_value(value)}: expected {expected}")
