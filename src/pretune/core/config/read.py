"""Plain data -> spec, strictly: every key known, every type right, every error with its full path.

The data may come from a stranger's file: reading it costs no more than its size, never recurses without bound, and can
only build the classes that the annotations list.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pretune.core.config.specs import KIND, Members, fields, is_spec, items, kind, members, to_dict
from pretune.core.errors import PretuneError, UsageError, nearest

T = TypeVar("T")

DEEPEST = 64
LARGEST = 2**63


def from_dict(cls: type[T], data: object, where: str = "config") -> T:
    """Build a spec of class `cls` from its plain form; `where` names the data in errors.

    Where a field allows several specs, `kind` chooses; where only one is possible it may be left out.
    """
    if is_spec(data):
        data = to_dict(data)
    if not isinstance(data, Mapping):
        raise UsageError(f"{where or 'config'}: expected {article(kind(cls))} object, found {shown(data)}")
    annotation: Any = cls
    return cast(T, _spec(members(annotation), data, where, 0))


def join(where: str, key: object) -> str:
    """A path one step longer."""
    return f"{where}.{key}" if where else str(key)


def shown(value: object, limit: int = 60) -> str:
    """A value in a message: short, on one line, and without recursion whatever it is."""
    if isinstance(value, str):
        return repr(value if len(value) <= limit else value[: limit - 3] + "...")
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return str(value) if abs(value) <= LARGEST else "an integer beyond 64 bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def article(word: str) -> str:
    """The word with 'a' or 'an' before it."""
    return f"an {word}" if word[:1] in "aeiou" else f"a {word}"


def choose(allowed: Members, data: Mapping[Any, Any], where: str) -> type:
    """The spec class that plain data names by its `kind`."""
    if KIND not in data:
        if len(allowed.specs) == 1:
            return next(iter(allowed.specs.values()))
        raise UsageError(f"{where or 'config'}: missing '{KIND}' (allowed: {', '.join(allowed.specs)})")
    name = data[KIND]
    if not isinstance(name, str) or name not in allowed.specs:
        hint = nearest(name, allowed.specs) if isinstance(name, str) else ""
        options = ", ".join([*allowed.specs, *(["null"] if allowed.none else [])])
        raise UsageError(f"{where or 'config'}: unknown kind {shown(name)}{hint} (allowed: {options})")
    return allowed.specs[name]


def _read(annotation: Any, value: object, where: str, depth: int) -> Any:
    """One value by its annotation."""
    allowed = members(annotation)
    if is_spec(value):
        value = to_dict(value)
    if depth > DEEPEST:
        raise UsageError(f"{where[:200]}: nested deeper than {DEEPEST} levels")
    if value is None and allowed.none:
        return None
    if isinstance(value, Mapping) and allowed.specs:
        return _spec(allowed, value, where, depth)
    if isinstance(value, list | tuple) and allowed.tuples:
        return _tuple(allowed, value, where, depth)
    if isinstance(value, bool | int | float | str):
        return _scalar(allowed, value, where)
    raise UsageError(f"{where}: expected {allowed}, found {shown(value)}")


def _spec(allowed: Members, data: Mapping[Any, Any], where: str, depth: int) -> Any:
    cls = choose(allowed, data, where)
    known = fields(cls)
    for key in data:
        if key != KIND and key not in known:
            hint = nearest(key, known) if isinstance(key, str) else ""
            path = shown(join(where, key if isinstance(key, str) else shown(key)), 200)
            raise UsageError(f"unknown key {path}{hint} ({kind(cls)} allows: {', '.join(known) or 'nothing'})")
    missing = [name for name, field in known.items() if field.default is None and name not in data]
    if missing:
        raise UsageError(f"{where or 'config'}: missing {', '.join(map(repr, missing))} of {article(kind(cls))}")
    values = {
        name: _read(field.annotation, data[name], join(where, name), depth + 1)
        for name, field in known.items()
        if name in data
    }
    try:
        return cls(**values)
    except PretuneError as error:
        raise type(error)(f"{where}: {error}" if where else str(error)) from error
    except (ValueError, ArithmeticError) as error:  # a check of the spec's own that tripped over a value
        raise UsageError(f"{where or 'config'}: {error}") from error


def _tuple(allowed: Members, value: list[Any] | tuple[Any, ...], where: str, depth: int) -> tuple[Any, ...]:
    for annotation in allowed.tuples:
        inner = items(annotation, len(value))
        if inner is not None:
            pairs = zip(inner, value, strict=True)
            return tuple(_read(part, item, join(where, i), depth + 1) for i, (part, item) in enumerate(pairs))
    sizes = " or ".join(str(len(annotation.__args__)) for annotation in allowed.tuples)
    raise UsageError(f"{where}: expected {sizes} items, found {len(value)}")


def _scalar(allowed: Members, value: bool | int | float | str, where: str) -> bool | int | float | str:
    # NOTE: bool is a subclass of int and 1 == 1.0 == True, so types are compared before values.
    for literal in allowed.literals:
        if type(literal) is type(value) and literal == value:
            return value
    if type(value) in (bool, str) and type(value) in allowed.scalars:
        return value
    if type(value) is int and (int in allowed.scalars or float in allowed.scalars):
        if abs(value) > LARGEST:
            raise UsageError(f"{where}: {shown(value)} is too large")
        return value if int in allowed.scalars else float(value)
    if type(value) is float and float in allowed.scalars:
        if not math.isfinite(value):
            raise UsageError(f"{where}: expected a finite number, found {value}")
        return value
    if isinstance(value, str) and allowed.literals:
        words = [literal for literal in allowed.literals if isinstance(literal, str)]
        raise UsageError(f"{where}: {shown(value)} is not allowed{nearest(value, words)} (allowed: {allowed})")
    raise UsageError(f"{where}: expected {allowed}, found {shown(value)}")
