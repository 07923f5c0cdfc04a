"""JSON read strictly: one object, no duplicate keys, no NaN, bounded size, and every fault told in one line."""

import json
import math
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from pretune.core.errors import PretuneError
from pretune.core.io.atomic import atomic_write

LIMIT = 64 * 2**20


def read_json(path: str | os.PathLike[str], error: type[PretuneError], limit: int = LIMIT) -> dict[str, Any]:
    """Read a file that holds one JSON object; any fault is raised as `error`."""
    name = os.fspath(path)
    try:
        # NOTE: looked at before it is opened: opening a pipe would wait for ever.
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{name}: not a regular file")
        if status.st_size > limit:
            raise error(f"{name}: {status.st_size} bytes are more than the {limit} allowed here")
        with Path(path).open("rb") as file:
            content = file.read(limit + 1)
    except FileNotFoundError:
        raise error(f"{name}: no such file") from None
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        raise error(f"{name}: cannot be read: {getattr(fault, 'strerror', None) or fault}") from fault
    if len(content) > limit:
        raise error(f"{name}: more than the {limit} bytes allowed here")
    try:
        text = content.decode()
    except UnicodeDecodeError as fault:
        raise error(f"{name}: not UTF-8 at byte {fault.start}") from None
    data = parse_json(text, error, name)
    if not isinstance(data, dict):
        raise error(f"{name}: expected a JSON object at the top level, found {_noun(data)}")
    return data


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Write data as indented JSON, atomically; NaN and infinity are a ValueError, for no reader would take them."""
    atomic_write(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def parse_json(text: str, error: type[PretuneError], where: str) -> Any:
    """Parse strict JSON text of any type; `where` names it in errors."""

    def refuse(constant: str) -> NoReturn:
        raise error(f"{where}: {constant} is not a JSON number")

    def number(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            refuse(digits[:40])
        return value

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice = next(key for key, count in counts.items() if count > 1)
            raise error(f"{where}: the key {twice[:60]!r} is given twice")
        return table

    try:
        return json.loads(text, parse_constant=refuse, parse_float=number, object_pairs_hook=unique)
    except json.JSONDecodeError as fault:
        raise error(f"{where}: bad JSON at {fault.lineno}:{fault.colno}: {fault.msg}") from None
    except RecursionError:
        raise error(f"{where}: bad JSON: nested too deeply") from None
    except ValueError:  # Python refuses to convert integers of thousands of digits
        raise error(f"{where}: bad JSON: a number has too many digits") from None


def _noun(data: object) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(data), "a number")
