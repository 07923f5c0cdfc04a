"""Records: JSON files read and validated by a declaration of their fields.

    class Cost(TypedDict):
        device: str
        seconds: Amount
        kwh: NotRequired[Amount | None]

    cost = read_record(Cost, folder / "cost.json", CheckpointError)

Undeclared fields are kept: a file may hold more than one reader needs.
"""

import dataclasses
import functools
import io
import math
import os
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

from pretune.core.config.read import MAX_INTEGER, format_value, from_dict, join_path
from pretune.core.config.specs import Constraint, Ge, Le
from pretune.core.errors import PretuneError, suggest
from pretune.core.io import open_regular, parse_json, read_json

T = TypeVar("T")


Count = Annotated[int, Ge(0), Le(2**60)]
Number = Annotated[float, Ge(-1e100), Le(1e100)]
"""Far from the limits of floats, so that sums and squares stay finite."""
Amount = Annotated[float, Ge(0), Le(1e100)]


def read_record(cls: type[T], path: str | os.PathLike[str], error: type[PretuneError]) -> T:
    """Read a JSON file as a record; any problem is raised as `error`, with the file and the field."""
    return check_record(cls, read_json(path, error), error, os.fspath(path))


def read_records(cls: type[T], path: str | os.PathLike[str], error: type[PretuneError]) -> list[T]:
    """Read a file with one record per line; any problem is raised as `error`, with the file and the line."""
    name, records = os.fspath(path), list[T]()
    try:
        with io.BufferedReader(open_regular(path)) as file:
            for number, line in enumerate(file, start=1):
                place = f"{name}:{number}"
                records.append(check_record(cls, parse_json(line, error, place), error, place))
    except OSError as fault:
        raise error(f"{name}: cannot be read: {fault.strerror}") from fault
    return records


def check_record(
    cls: type[T],
    data: object,
    error: type[PretuneError],
    location: str,
    remedy: str = "; the file is damaged or from another release",
) -> T:
    """Return data as a record (`TypedDict`) if every declared field has its type; else raise `error`."""
    try:
        _check_value(cls, data, "")
    except _FieldError as fault:
        raise error(f"{location}: {fault}{remedy}") from None
    return cast(T, data)


class _FieldError(Exception):
    """Missing field, or value of the wrong type."""


def _check_value(annotation: Any, value: object, path: str) -> None:
    annotation, bounds = _unwrap_annotation(annotation)
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        _check_union(typing.get_args(annotation), value, path)
    elif annotation is Any or (origin is Literal and value in typing.get_args(annotation) and type(value) is not bool):
        return
    elif typing.is_typeddict(annotation) and isinstance(value, dict):
        _check_fields(annotation, value, path)
    elif origin is dict and isinstance(value, dict):
        for key, inner in value.items():
            _check_value(typing.get_args(annotation)[1], inner, join_path(path, key))
    elif origin is tuple and isinstance(value, list | tuple) and len(value) == len(typing.get_args(annotation)):
        for i, (part, inner) in enumerate(zip(typing.get_args(annotation), value, strict=True)):
            _check_value(part, inner, join_path(path, i))
    elif origin is list and isinstance(value, list):
        for i, inner in enumerate(value):
            _check_value(typing.get_args(annotation)[0], inner, join_path(path, i))
    elif dataclasses.is_dataclass(annotation) and isinstance(value, Mapping):
        _check_spec(annotation, value, path)
    elif (annotation in (int, float) and _is_number(annotation, value)) or (annotation is str and type(value) is str):
        if not all(bound.allows(value) for bound in bounds):
            limits = " and ".join(map(str, bounds))
            raise _FieldError(f"{_format_field(path)} is {format_value(value)}, must be {limits}")
    elif annotation not in (bool, types.NoneType, None) or type(value) is not (annotation or types.NoneType):
        raise _FieldError(f"{_format_field(path)} is {format_value(value)}, expected {_describe_type(annotation)}")


def _check_union(options: tuple[Any, ...], value: object, path: str) -> None:
    """Accept a value that any option accepts; otherwise raise the error that is deepest in the value."""
    faults = []
    for option in options:
        try:
            return _check_value(option, value, path)
        except _FieldError as fault:
            faults.append(str(fault))
    inside = [fault for fault in faults if not fault.startswith(f"{_format_field(path)} is ")]
    types_text = " or ".join(_describe_type(option) for option in options)
    raise _FieldError(inside[0] if inside else f"{_format_field(path)} is {format_value(value)}, expected {types_text}")


def _check_fields(cls: Any, data: dict[str, object], path: str) -> None:
    for name, annotation in _get_hints(cls).items():
        if name in data:
            _check_value(annotation, data[name], join_path(path, name))
        elif name in cls.__required_keys__:
            raise _FieldError(f"{_format_field(join_path(path, name))} is missing{suggest(name, data)}")


def _check_spec(cls: Any, data: object, path: str) -> None:
    try:
        from_dict(cls, data, location=path)
    except PretuneError as fault:
        raise _FieldError(str(fault)) from None


@functools.cache
def _get_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _unwrap_annotation(annotation: Any) -> tuple[Any, list[Constraint]]:
    """Return an annotation without `NotRequired` and `Annotated`, and its bounds."""
    bounds: list[Constraint] = []
    while (origin := typing.get_origin(annotation)) in (typing.NotRequired, typing.Required, Annotated):
        if origin is Annotated:
            bounds += [extra for extra in annotation.__metadata__ if isinstance(extra, Constraint)]
        annotation = typing.get_args(annotation)[0]
    return annotation, bounds


def _is_number(annotation: type, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(value, float):
        return annotation is float and math.isfinite(value)
    return abs(value) <= MAX_INTEGER


def _format_field(path: str) -> str:
    return format_value(path) if path else "the content"


def _describe_type(annotation: Any) -> str:
    annotation, _ = _unwrap_annotation(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(_describe_type(option) for option in typing.get_args(annotation))
    if typing.get_origin(annotation) is Literal:
        return " or ".join(map(repr, typing.get_args(annotation)))
    nouns = {int: "an integer", float: "a number", str: "a string", bool: "true or false", types.NoneType: "null"}
    if annotation in nouns:
        return nouns[annotation]
    if typing.get_origin(annotation) is tuple:
        return f"a list of {len(typing.get_args(annotation))}"
    return "a list" if typing.get_origin(annotation) is list else "an object"
