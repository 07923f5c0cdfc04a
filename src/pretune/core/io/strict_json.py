"""Strict JSON: one object, no duplicate keys, no NaN, bounded size, one-line errors."""

import json
import math
import os
from collections import Counter
from typing import Any, NoReturn

from pretune.core.errors import PretuneError
from pretune.core.io.atomic import atomic_write
from pretune.core.io.paths import read_bounded

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 100
"""Levels of nesting: far more than any valid file has, far fewer than the recursion limit."""


def read_json(path: str | os.PathLike[str], error: type[PretuneError], limit: int = MAX_BYTES) -> dict[str, Any]:
    """Read a file that holds one JSON object; any problem is raised as `error`."""
    name, content = os.fspath(path), read_bounded(path, error, limit)
    try:
        text = content.decode()
    except UnicodeDecodeError as fault:
        raise error(f"{name}: not UTF-8 at byte {fault.start}") from None
    data = parse_json(text, error, name)
    if not isinstance(data, dict):
        raise error(f"{name}: expected a JSON object at the top level, got {_describe_type(data)}")
    return data


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Write data as indented JSON, atomically; NaN and infinity raise a ValueError."""
    atomic_write(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def parse_json(text: str, error: type[PretuneError], location: str) -> Any:
    """Parse strict JSON text of any type; `location` names it in errors."""

    def raise_not_number(constant: str) -> NoReturn:
        raise error(f"{location}: {constant} is not a JSON number")

    def parse_number(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            raise_not_number(digits[:40])
        return value

    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            duplicate = next(key for key, count in counts.items() if count > 1)
            raise error(f"{location}: duplicate key {duplicate[:60]!r}")
        return table

    try:
        data = json.loads(
            text, parse_constant=raise_not_number, parse_float=parse_number, object_pairs_hook=build_object
        )
    except json.JSONDecodeError as fault:
        raise error(f"{location}: bad JSON at {fault.lineno}:{fault.colno}: {fault.msg}") from None
    except RecursionError:
        raise error(f"{location}: bad JSON: nested too deeply") from None
    except ValueError:  # Python refuses to convert integers of thousands of digits
        raise error(f"{location}: bad JSON: a number has too many digits") from None
    if _is_deep(data):
        raise error(f"{location}: bad JSON: nested too deeply (more than {MAX_DEPTH} levels)")
    return data


def _is_deep(data: object) -> bool:
    """Return whether data are nested deeper than `MAX_DEPTH`."""
    level = [data]
    for _ in range(MAX_DEPTH):
        parts = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [inner for part in parts for inner in part if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _describe_type(data: object) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(data), "a number")
