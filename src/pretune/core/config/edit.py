"""Specs edited by path: replace, list, compare.

A path is field names and tuple indices joined by dots: `encoder.blocks.0.attention.heads`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pretune.core.config.read import choose, from_dict, join, shown
from pretune.core.config.specs import fields, is_spec, items, kind, members, plain, to_dict
from pretune.core.config.text import parse
from pretune.core.errors import UsageError, nearest

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
    return from_dict(type(spec), tree, where="")


def paths(spec: object) -> list[str]:
    """Every path that holds a value: numbers, words, lists of these, empty slots and specs without fields."""
    return list(_leaves(spec, ""))


def diff(a: object, b: object) -> dict[str, tuple[Any, Any]]:
    """The paths at which two specs differ, with both plain values.

    Where a slot holds another kind, is empty on one side, or a list has another length, the whole part is given, so
    `replace(a, {path: right for path, (left, right) in diff(a, b).items()})` is `b`. Two specs of different kinds
    differ in one place, `kind`.
    """
    if type(a) is not type(b):
        return {"kind": (kind(a), kind(b))}
    return dict(_differences(a, b, ""))


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Split `path=value` texts, as `--set` takes them, at their first `=`."""
    changes: dict[str, str] = {}
    for item in assignments:
        path, equals, value = item.partition("=")
        path = path.strip()
        if not equals or not _PATH.fullmatch(path):
            raise UsageError(f"cannot read the setting {shown(item)}: expected path=value, such as train.lr=3e-4")
        if path in changes:
            raise UsageError(f"'{path}' is set twice: to {shown(changes[path])} and to {shown(value)}; keep one")
        changes[path] = value
    return changes


def _assign(spec: object, tree: dict[str, Any], path: str, value: Any) -> None:
    """Put a value at a path of a spec's plain tree, walking the tree and its annotations together."""
    annotation: Any = type(spec)
    node: Any = tree
    *parents, last = path.split(".")
    where = ""
    for part in parents:
        key, annotation = _enter(spec, annotation, node, where, part, path)
        if key not in (node if isinstance(node, dict) else range(len(node))):
            raise UsageError(f"cannot set '{path}': '{join(where, part)}' has no value yet; set it first")
        node = node[key]
        where = join(where, part)
    key, annotation = _enter(spec, annotation, node, where, last, path)
    node[key] = parse(annotation, value, path) if isinstance(value, str) else plain(value)


def _enter(spec: object, annotation: Any, node: Any, where: str, part: str, path: str) -> tuple[str | int, Any]:
    """The key and the annotation of one part of a node; defaults that the node leaves out are filled in."""
    allowed = members(annotation)
    if isinstance(node, dict) and allowed.specs:
        known = fields(choose(allowed, node, where))
        if part not in known:
            raise _unknown(spec, path, where, known)
        default = known[part].default
        if part not in node and default is not None:
            node[part] = plain(default())
        return part, known[part].annotation
    if isinstance(node, list):
        for candidate in allowed.tuples:
            inner = items(candidate, len(node))
            if inner is not None and part.isdecimal() and int(part[:9]) < len(node):
                return int(part[:9]), inner[int(part[:9])]
        raise _unknown(spec, path, where, map(str, range(len(node))))
    if node is None and allowed.specs:
        options = ", ".join(allowed.specs)
        raise UsageError(f"cannot set '{path}': '{where}' is null; set it to one of its kinds first ({options})")
    raise _unknown(spec, path, where, [])


def _unknown(spec: object, path: str, where: str, options: Iterable[str]) -> UsageError:
    """The error that refuses a path and names the nearest valid one."""
    options = list(options)
    leaves = paths(spec)
    valid = {".".join(leaf.split(".")[:n]) for leaf in leaves for n in range(1, leaf.count(".") + 2)}
    valid |= {join(where, option) for option in options}
    ends = sorted((choice for choice in valid if choice.endswith(f".{path}")), key=lambda end: (end.count("."), end))
    hint = f"; did you mean '{ends[0]}'?" if ends else nearest(path, sorted(valid))
    allows = f"'{where}' allows" if where else "allowed"
    return UsageError(f"unknown path {shown(path, 200)}{hint} ({allows}: {', '.join(options) or 'nothing inside'})")


def _leaves(value: object, where: str) -> Iterator[str]:
    inner = _parts(value)
    if not inner and where:
        yield where
    for key, part in inner:
        yield from _leaves(part, join(where, key))


def _differences(a: object, b: object, where: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    left, right = _parts(a), _parts(b)
    if type(a) is type(b) and left and [key for key, _ in left] == [key for key, _ in right]:
        for (key, one), (_, other) in zip(left, right, strict=True):
            yield from _differences(one, other, join(where, key))
    elif a != b:
        yield where, (plain(a), plain(b))


def _parts(value: Any) -> list[tuple[str | int, Any]]:
    """What lies inside a value and has a path of its own; a list of plain values is one value."""
    if is_spec(value):
        return [(name, getattr(value, name)) for name in fields(type(value))]
    if isinstance(value, tuple) and any(map(is_spec, value)):
        return list(enumerate(value))
    return []
