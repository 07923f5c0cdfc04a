"""Specs edited by path: replace, list, compare.

A path is field names and tuple indices joined by dots: `encoder.blocks.0.attention.heads`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pretune.core.config.read import choose_spec_class, format_value, from_dict, join_path
from pretune.core.config.specs import get_fields, get_item_types, get_kind, is_spec, parse_annotation, to_dict, to_plain
from pretune.core.config.text import parse_value
from pretune.core.errors import UsageError, suggest

T = TypeVar("T")

_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*")


def replace(spec: T, changes: Mapping[str, Any]) -> T:
    """The spec with the values at some paths replaced; a value that is text is parsed by the type of its field.

    All changes are made before anything is checked, so values that must agree (a width and its heads) can change
    together. A part is replaced before what lies inside it: `norm=rms_norm` and `norm.eps=1e-6` may come in any order.
    """
    tree = to_dict(spec)
    for path, value in sorted(changes.items(), key=lambda change: change[0].count(".")):
        _assign(spec, tree, path, value)
    return from_dict(type(spec), tree, location="")


def list_paths(spec: object) -> list[str]:
    """Every path that holds a value: numbers, words, lists of these, empty slots and specs without fields."""
    return list(_iter_leaves(spec, ""))


def diff(a: object, b: object) -> dict[str, tuple[Any, Any]]:
    """The paths at which two specs differ, with both plain values.

    Where a slot holds another kind, is empty on one side, or a list has another length, the whole part is given, so
    `replace(a, {path: right for path, (left, right) in diff(a, b).get_item_types()})` is `b`. Two specs of different kinds
    differ in one place, `get_kind`.
    """
    if type(a) is not type(b):
        return {"kind": (get_kind(a), get_kind(b))}
    return dict(_iter_differences(a, b, ""))


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Split `path=value` texts, as `--set` takes them, at their first `=`."""
    changes: dict[str, str] = {}
    for item in assignments:
        path, equals, value = item.partition("=")
        path = path.strip()
        if not equals or not _PATH.fullmatch(path):
            raise UsageError(
                f"cannot read the setting {format_value(item)}: expected path=value, such as train.lr=3e-4"
            )
        if path in changes:
            raise UsageError(
                f"'{path}' is set twice: to {format_value(changes[path])} and to {format_value(value)}; keep one"
            )
        changes[path] = value
    return changes


def _assign(spec: object, tree: dict[str, Any], path: str, value: Any) -> None:
    """Put a value at a path of a spec's plain tree, walking the tree and its annotations together."""
    annotation: Any = type(spec)
    node: Any = tree
    *parents, last = path.split(".")
    where = ""
    for part in parents:
        key, annotation = _resolve_part(spec, annotation, node, where, part, path)
        if key not in (node if isinstance(node, dict) else range(len(node))):
            raise UsageError(f"cannot set '{path}': '{join_path(where, part)}' has no value yet; set it first")
        node = node[key]
        where = join_path(where, part)
    key, annotation = _resolve_part(spec, annotation, node, where, last, path)
    node[key] = parse_value(annotation, value, path) if isinstance(value, str) else to_plain(value)


def _resolve_part(spec: object, annotation: Any, node: Any, prefix: str, part: str, path: str) -> tuple[str | int, Any]:
    """The key and the annotation of one part of a node; defaults that the node leaves out are filled in."""
    allowed = parse_annotation(annotation)
    if isinstance(node, dict) and allowed.specs:
        known = get_fields(choose_spec_class(allowed, node, prefix))
        if part not in known:
            raise _make_unknown_error(spec, path, prefix, known)
        default = known[part].default
        if part not in node and default is not None:
            node[part] = to_plain(default())
        return part, known[part].annotation
    if isinstance(node, list):
        for candidate in allowed.tuples:
            inner = get_item_types(candidate, len(node))
            if inner is not None and part.isdecimal() and int(part[:9]) < len(node):
                return int(part[:9]), inner[int(part[:9])]
        raise _make_unknown_error(spec, path, prefix, map(str, range(len(node))))
    if node is None and allowed.specs:
        options = ", ".join(allowed.specs)
        raise UsageError(f"cannot set '{path}': '{prefix}' is null; set it to one of its kinds first ({options})")
    raise _make_unknown_error(spec, path, prefix, [])


def _make_unknown_error(spec: object, path: str, prefix: str, options: Iterable[str]) -> UsageError:
    """The error that refuses a path and names the nearest valid one."""
    options = list(options)
    leaves = list_paths(spec)
    valid = {".".join(leaf.split(".")[:n]) for leaf in leaves for n in range(1, leaf.count(".") + 2)}
    valid |= {join_path(prefix, option) for option in options}
    ends = sorted((choice for choice in valid if choice.endswith(f".{path}")), key=lambda end: (end.count("."), end))
    hint = f"; did you mean '{ends[0]}'?" if ends else suggest(path, sorted(valid))
    allows = f"'{prefix}' allows" if prefix else "allowed"
    return UsageError(
        f"unknown path {format_value(path, 200)}{hint} ({allows}: {', '.join(options) or 'nothing inside'})"
    )


def _iter_leaves(value: object, prefix: str) -> Iterator[str]:
    inner = _list_parts(value)
    if not inner and prefix:
        yield prefix
    for key, part in inner:
        yield from _iter_leaves(part, join_path(prefix, key))


def _iter_differences(a: object, b: object, prefix: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    left, right = _list_parts(a), _list_parts(b)
    if type(a) is type(b) and left and [key for key, _ in left] == [key for key, _ in right]:
        for (key, one), (_, other) in zip(left, right, strict=True):
            yield from _iter_differences(one, other, join_path(prefix, key))
    elif a != b:
        yield prefix, (to_plain(a), to_plain(b))


def _list_parts(value: Any) -> list[tuple[str | int, Any]]:
    """What lies inside a value and has a path of its own; a list of plain values is one value."""
    if is_spec(value):
        return [(name, getattr(value, name)) for name in get_fields(type(value))]
    if isinstance(value, tuple) and any(map(is_spec, value)):
        return list(enumerate(value))
    return []
