"""Strict reading of specs from plain data and of plain data from YAML.

Unknown keys and wrong types are errors with the full path. YAML has no tags, no aliases (which can expand without
bound), and a limited size and depth.

The data may be untrusted: reading costs time linear in its size, the recursion is bounded, and only the classes that
the annotations list are built.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pretune.core.config.specs import (
    KIND,
    FieldError,
    FieldType,
    get_fields,
    get_item_types,
    get_kind,
    is_spec,
    parse_annotation,
    to_dict,
)
from pretune.core.errors import PretuneError, UsageError, suggest
from pretune.core.io import read_bounded

T = TypeVar("T")

MAX_DEPTH = 64
"""Levels of plain data."""
MAX_INTEGER = 2**63
MAX_YAML_BYTES = 1 << 18
MAX_YAML_VALUES = 10_000
"""Values and keys; PyYAML reads a few thousand per second."""
MAX_YAML_SCALAR = 1 << 12
"""Characters of an unquoted value: converting it to a number takes quadratic time."""


def from_dict(cls: type[T], data: object, location: str = "config") -> T:
    """Build a spec of class `cls` from its plain form; `location` names the data in errors.

    If a field allows several specs, the key `kind` selects one; if only one is possible, it is optional.
    """
    if is_spec(data):
        data = to_dict(data)
    if not isinstance(data, Mapping):
        raise UsageError(
            f"{location or 'config'}: expected {add_article(get_kind(cls))} object, got {format_value(data)}"
        )
    annotation: Any = cls
    return cast(T, _read_spec(parse_annotation(annotation), data, location, 0))


def join_path(prefix: str, key: object) -> str:
    """Return a path extended by one key."""
    return f"{prefix}.{key}" if prefix else str(key)


def format_value(value: object, limit: int = 60) -> str:
    """Return a value for use in a message: short, on one line, never recursive."""
    if isinstance(value, str):
        return repr(value if len(value) <= limit else value[: limit - 3] + "...")
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return str(value) if abs(value) <= MAX_INTEGER else "an integer beyond 64 bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def add_article(word: str) -> str:
    """Return the word with its indefinite article."""
    return f"an {word}" if word[:1] in "aeiou" else f"a {word}"


def choose_spec_class(field_type: FieldType, data: Mapping[Any, Any], location: str) -> type:
    """Return the spec class that plain data select by their `kind`."""
    if KIND not in data:
        if len(field_type.specs) == 1:
            return next(iter(field_type.specs.values()))
        raise UsageError(f"{location or 'config'}: missing '{KIND}' (allowed: {', '.join(field_type.specs)})")
    name = data[KIND]
    if not isinstance(name, str) or name not in field_type.specs:
        hint = suggest(name, field_type.specs) if isinstance(name, str) else ""
        options = ", ".join([*field_type.specs, *(["null"] if field_type.is_optional else [])])
        raise UsageError(f"{location or 'config'}: unknown kind {format_value(name)}{hint} (allowed: {options})")
    return field_type.specs[name]


def _read_value(annotation: Any, value: object, location: str, depth: int) -> Any:
    """Convert one value by its annotation; of `Any`, its owner checks it."""
    if annotation is Any:
        return value
    field_type = parse_annotation(annotation)
    if is_spec(value):
        value = to_dict(value)
    if depth > MAX_DEPTH:
        raise UsageError(f"{location[:200]}: nested deeper than {MAX_DEPTH} levels")
    if value is None and field_type.is_optional:
        return None
    if isinstance(value, Mapping) and field_type.specs:
        return _read_spec(field_type, value, location, depth)
    if isinstance(value, list | tuple) and field_type.tuples:
        return _read_tuple(field_type, value, location, depth)
    if isinstance(value, bool | int | float | str):
        return _read_scalar(field_type, value, location)
    hint = """; write a,b or '["a b", "c"]'""" if isinstance(value, str) and field_type.tuples else ""
    raise UsageError(f"{location}: expected {field_type}, got {format_value(value)}{hint}")


def _read_spec(field_type: FieldType, data: Mapping[Any, Any], location: str, depth: int) -> Any:
    cls = choose_spec_class(field_type, data, location)
    fields = get_fields(cls)
    for key in data:
        if key != KIND and key not in fields:
            hint = suggest(key, fields) if isinstance(key, str) else ""
            path = format_value(join_path(location, key if isinstance(key, str) else format_value(key)), 200)
            raise UsageError(f"unknown key {path}{hint} ({get_kind(cls)} allows: {', '.join(fields) or 'nothing'})")
    missing = [name for name, field in fields.items() if field.default is None and name not in data]
    if missing:
        raise UsageError(
            f"{location or 'config'}: missing {', '.join(map(repr, missing))} of {add_article(get_kind(cls))}"
        )
    values = {
        name: _read_value(field.annotation, data[name], join_path(location, name), depth + 1)
        for name, field in fields.items()
        if name in data
    }
    try:
        return cls(**values)
    except FieldError as error:
        raise UsageError(join_path(location, error.problem)) from None
    except PretuneError as error:
        raise type(error)(f"{location}: {error}" if location else str(error)) from error
    except (ValueError, ArithmeticError) as error:  # raised by the spec's own validation
        raise UsageError(f"{location or 'config'}: {error}") from error


def _read_tuple(
    field_type: FieldType, value: list[Any] | tuple[Any, ...], location: str, depth: int
) -> tuple[Any, ...]:
    for annotation in field_type.tuples:
        inner = get_item_types(annotation, len(value))
        if inner is not None:
            pairs = zip(inner, value, strict=True)
            return tuple(
                _read_value(part, item, join_path(location, i), depth + 1) for i, (part, item) in enumerate(pairs)
            )
    sizes = " or ".join(str(len(annotation.__args__)) for annotation in field_type.tuples)
    raise UsageError(f"{location}: expected {sizes} items, got {len(value)}")


def _read_scalar(field_type: FieldType, value: bool | int | float | str, location: str) -> bool | int | float | str:
    # NOTE: bool is a subclass of int and 1 == 1.0 == True, so types are compared before values.
    for literal in field_type.literals:
        if type(literal) is type(value) and literal == value:
            return value
    if type(value) in (bool, str) and type(value) in field_type.scalars:
        return value
    if type(value) is int and (int in field_type.scalars or float in field_type.scalars):
        if abs(value) > MAX_INTEGER:
            raise UsageError(f"{location}: {format_value(value)} is too large")
        return value if int in field_type.scalars else float(value)
    if type(value) is float and float in field_type.scalars:
        if not math.isfinite(value):
            raise UsageError(f"{location}: expected a finite number, got {value}")
        return value
    if isinstance(value, str) and field_type.literals:
        words = [literal for literal in field_type.literals if isinstance(literal, str)]
        raise UsageError(
            f"{location}: {format_value(value)} is not allowed{suggest(value, words)} (allowed: {field_type})"
        )
    raise UsageError(f"{location}: expected {field_type}, got {format_value(value)}")


def read_yaml(file: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file."""
    import yaml

    data = read_bounded(file, UsageError, MAX_YAML_BYTES)
    loader = _make_yaml_loader(file)
    try:
        _check_size(file, data, loader)
        content = loader(data).get_single_data()
    # ArithmeticError and LookupError: dates and numbers that PyYAML cannot convert
    except (yaml.YAMLError, ValueError, RecursionError, ArithmeticError, LookupError) as fault:
        raise UsageError(f"{file}: invalid YAML: {_to_printable(str(fault))}") from None
    _check_scalars(content, file)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        text = "nothing" if content is None else f"a {format_value(content)[:40]}"
        raise UsageError(f"{file}: expected settings as `name: value`, got {text}")
    return content


def _make_yaml_loader(file: Path) -> Any:
    """Return a class that reads YAML safely and bounds the nesting.

    A key that occurs twice would drop the first value, and is an error.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 (the library's name)
            # NOTE: the scanner runs ahead of the events, in time quadratic in the depth.
            if self.flow_level > MAX_DEPTH:
                raise UsageError(f"{file}: nested deeper than {MAX_DEPTH} levels")
            super().fetch_flow_collection_start(TokenClass)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in keys:
                    place = f"{file}:{key.start_mark.line + 1}"
                    raise UsageError(f"{place}: '{_to_printable(key.value)}' is set twice; keep one")
                keys.add(key.value if isinstance(key, yaml.ScalarNode) else "")
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            return mapping

    return Loader


def _check_size(file: Path, data: bytes, loader: Any) -> None:
    """Reject a file that would take more than linear time to read, before any value is built."""
    import yaml

    depth = 0
    for number, event in enumerate(yaml.parse(data, Loader=loader)):
        if number > MAX_YAML_VALUES:
            raise UsageError(f"{file}: more than {MAX_YAML_VALUES:,} values")
        if isinstance(event, yaml.AliasEvent):
            raise UsageError(f"{file}: aliases (*{_to_printable(str(event.anchor))}) are not allowed; write it out")
        if getattr(event, "tag", None) is not None:
            raise UsageError(f"{file}: tags ({_to_printable(event.tag)}) are not allowed; leave it out")
        if isinstance(event, yaml.ScalarEvent) and event.style is None and len(event.value) > MAX_YAML_SCALAR:
            raise UsageError(f"{file}: a value of {len(event.value):,} characters without quotes; put it in quotes")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise UsageError(f"{file}: nested deeper than {MAX_DEPTH} levels")


def _check_scalars(content: Any, file: Path) -> None:
    """Raise a UsageError for a value that no setting has: a date, binary data, an integer or float out of range."""
    if isinstance(content, dict | list):
        for part in [*content, *content.values()] if isinstance(content, dict) else content:
            _check_scalars(part, file)
    elif isinstance(content, int) and abs(content) > MAX_INTEGER:
        raise UsageError(f"{file}: {format_value(content)} is too large")
    elif isinstance(content, float) and not math.isfinite(content):
        raise UsageError(f"{file}: expected a finite number, got {content}")
    elif not isinstance(content, str | int | float | None):
        raise UsageError(f"{file}: a {type(content).__name__} is not a setting; put it in quotes")


def _to_printable(text: str) -> str:
    line = " ".join(text.split())[:200]
    return "".join(letter if letter.isprintable() else "?" for letter in line)
