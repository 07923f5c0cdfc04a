"""Editing specs by path: replace, list, compare; values may be text, as `--set` gives them.

A path is field names and tuple indices joined by dots: `encoder.blocks.0.attention.heads`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pretune.core.config.read import choose_spec_class, format_value, from_dict, join_path
from pretune.core.config.specs import (
    KIND,
    FieldType,
    get_fields,
    get_item_types,
    get_kind,
    is_spec,
    parse_annotation,
    to_dict,
    to_plain,
)
from pretune.core.errors import UsageError, suggest
from pretune.core.io import parse_json

T = TypeVar("T")

_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_INTEGER = re.compile(r"[+-]?\d+(_\d+)*")
_FLOAT = re.compile(r"[+-]?(\d+(_\d+)*\.?(\d+(_\d+)*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_ITEMS = re.compile(r'[^\s,\[\]{}"]+(\s*,\s*[^\s,\[\]{}"]+)*')
_MAX_NUMBER_LENGTH = 40  # int() is quadratic in the number of digits; none that fits 64 bits is longer


def replace(spec: T, changes: Mapping[str, Any], location: str = "") -> T:
    """Return the spec with the values at some paths replaced; text values are parsed by the type of the field.

    `location` names the spec in errors. All changes are made before anything is validated, so values that must agree (a
    width and its heads) can change together. Outer paths are replaced first: `norm=rms_norm` and `norm.eps=1e-6` may
    come in any order.
    """
    tree = to_dict(spec)
    try:
        for path, value in sorted(changes.items(), key=lambda change: change[0].count(".")):
            _assign(spec, tree, path, value)
    except UsageError as error:
        raise UsageError(f"{location}: {error}" if location else str(error)) from None
    return from_dict(type(spec), tree, location)


def list_paths(spec: object) -> list[str]:
    """Return every path that holds a value: numbers, strings, lists of these, null and specs without fields."""
    return list(_iter_leaves(spec, ""))


def diff(left: object, right: object) -> dict[str, tuple[Any, Any]]:
    """Return the paths at which two specs differ, with both plain values.

    If a field has another kind, is null on one side, or a list has another length, the entire value is given, so
    `replace(a, {path: right for path, (left, right) in diff(a, b).items()})` is `b`. Two specs of different kinds
    differ in one path, `kind`.
    """
    if type(left) is not type(right):
        return {"kind": (get_kind(left), get_kind(right))}
    return dict(_iter_differences(left, right, ""))


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Split `path=value` strings of `--set` at their first `=`."""
    changes: dict[str, str] = {}
    for item in assignments:
        path, equals, value = item.partition("=")
        path = path.strip()
        if not equals or not _PATH.fullmatch(path):
            raise UsageError(
                f"cannot parse the setting {format_value(item)}: expected path=value, such as train.lr=3e-4"
            )
        if path in changes:
            raise UsageError(
                f"'{path}' is set twice: to {format_value(changes[path])} and to {format_value(value)}; keep one"
            )
        changes[path] = value
    return changes


def _assign(spec: object, tree: dict[str, Any], path: str, value: Any) -> None:
    """Assign a value at a path of the plain tree of a spec, following the annotations."""
    annotation: Any = type(spec)
    node: Any = tree
    *parents, last = path.split(".")
    prefix = ""
    for part in parents:
        key, annotation = _resolve_part(spec, annotation, node, prefix, part, path)
        if key not in (node if isinstance(node, dict) else range(len(node))):
            raise UsageError(f"cannot set '{path}': '{join_path(prefix, part)}' has no value yet; set it first")
        node = node[key]
        prefix = join_path(prefix, part)
    key, annotation = _resolve_part(spec, annotation, node, prefix, last, path)
    node[key] = parse_value(annotation, value, path) if isinstance(value, str) else to_plain(value)


def _resolve_part(spec: object, annotation: Any, node: Any, prefix: str, part: str, path: str) -> tuple[str | int, Any]:
    """Return the key and the annotation of one part of a node; defaults missing in the node are filled in."""
    field_type = parse_annotation(annotation)
    if isinstance(node, dict) and field_type.specs:
        fields = get_fields(choose_spec_class(field_type, node, prefix))
        if part not in fields:
            raise _make_unknown_error(spec, path, prefix, fields)
        default = fields[part].default
        if part not in node and default is not None:
            node[part] = to_plain(default())
        return part, fields[part].annotation
    if isinstance(node, list):
        for candidate in field_type.tuples:
            inner = get_item_types(candidate, len(node))
            if inner is not None and part.isdecimal() and int(part[:9]) < len(node):
                return int(part[:9]), inner[int(part[:9])]
        raise _make_unknown_error(spec, path, prefix, map(str, range(len(node))))
    if node is None and field_type.specs:
        options = ", ".join(field_type.specs)
        raise UsageError(f"cannot set '{path}': '{prefix}' is null; set it to one of its kinds first ({options})")
    raise _make_unknown_error(spec, path, prefix, [])


def _make_unknown_error(spec: object, path: str, prefix: str, options: Iterable[str]) -> UsageError:
    """Return the error for an unknown path, with the closest valid one."""
    options = list(options)
    leaves = list_paths(spec)
    valid = {".".join(leaf.split(".")[:n]) for leaf in leaves for n in range(1, leaf.count(".") + 2)}
    valid |= {join_path(prefix, option) for option in options}
    ends = sorted((choice for choice in valid if choice.endswith(f".{path}")), key=lambda end: (end.count("."), end))
    hint = f"; did you mean '{ends[0]}'?" if ends else suggest(path, sorted(valid))
    allows = f"'{prefix}' allows" if prefix else "allowed"
    return UsageError(f"unknown path {format_value(path, 200)}{hint} ({allows}: {', '.join(options) or 'no fields'})")


def _iter_leaves(value: object, prefix: str) -> Iterator[str]:
    inner = _list_parts(value)
    if not inner and prefix:
        yield prefix
    for key, part in inner:
        yield from _iter_leaves(part, join_path(prefix, key))


def _iter_differences(left: object, right: object, prefix: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    left_parts, right_parts = _list_parts(left), _list_parts(right)
    if type(left) is type(right) and left_parts and [key for key, _ in left_parts] == [key for key, _ in right_parts]:
        for (key, left_part), (_, right_part) in zip(left_parts, right_parts, strict=True):
            yield from _iter_differences(left_part, right_part, join_path(prefix, key))
    elif left != right:
        yield prefix, (to_plain(left), to_plain(right))


def _list_parts(value: Any) -> list[tuple[str | int, Any]]:
    """Return the nested values of a value that have paths; a list of plain values is one value."""
    if is_spec(value):
        return [(name, getattr(value, name)) for name in get_fields(type(value))]
    if isinstance(value, tuple) and any(map(is_spec, value)):
        return list(enumerate(value))
    return []


def parse_value(annotation: Any, text: str, location: str) -> Any:
    """Return the plain value of a text for a field; text that fits none of its types is returned unchanged.

    Integers may be written 30_000 or 3e4; true, false, null and none in any case; specs and lists as JSON, a spec by
    its kind alone (`norm=rms_norm`), and items without spaces with commas between them (`languages=en,en-de`).
    """
    field_type = parse_annotation(annotation)
    word = text.strip()
    if text in field_type.literals:
        return text
    if field_type.is_optional and word.lower() in ("null", "none"):
        return None
    scalar = _parse_scalar(field_type, word)
    if scalar is not None:
        return scalar
    if (word.startswith("{") and field_type.specs) or (word.startswith("[") and field_type.tuples):
        return parse_json(word, UsageError, location)
    if field_type.tuples and str not in field_type.scalars and _ITEMS.fullmatch(word):
        items = [item.strip() for item in word.split(",")]
        for candidate in field_type.tuples if len(items) > 1 or not field_type.specs else ():
            if (item_types := get_item_types(candidate, len(items))) is not None:
                return [parse_value(*pair, location) for pair in zip(item_types, items, strict=True)]
    if field_type.specs and str not in field_type.scalars and (word in field_type.specs or not field_type.literals):
        return {KIND: word}
    return text


def _parse_scalar(field_type: FieldType, word: str) -> bool | int | float | None:
    scalar_types = {*field_type.scalars, *(type(literal) for literal in field_type.literals)}
    if bool in scalar_types and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if len(word) > _MAX_NUMBER_LENGTH or not _FLOAT.fullmatch(word):
        return None
    if int in scalar_types and _INTEGER.fullmatch(word):
        return int(word)
    number = float(word)
    if int in scalar_types and number.is_integer():
        return int(number)
    return number if float in scalar_types else None
