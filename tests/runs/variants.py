"""Other values for every field of a spec, as `--set` would give them."""

import json
from collections.abc import Iterator
from typing import Any

from pretune.core.config.specs import KIND, get_fields, is_spec, is_tagged, parse_annotation, to_plain
from pretune.core.errors import PretuneError


def changes_of(spec: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Paths with another value each: scalars, null, and every kind of a slot with each of its scalars changed."""
    for name, field in get_fields(type(spec)).items():
        value, path = getattr(spec, name), f"{where}.{name}"
        for other in [*_scalars(field.annotation, to_plain(value)), *_objects(field.annotation)]:
            yield path, other
        inner = [(path, value)] if is_spec(value) else []
        inner += [(f"{path}.{i}", one) for i, one in enumerate(value) if is_spec(one)] if type(value) is tuple else []
        for place, part in inner:
            yield from changes_of(part, place)


def text_of(value: Any) -> str:
    """A value as it is typed behind `path=`."""
    return value if isinstance(value, str) else json.dumps(value)


def holds(tree: Any, path: str, value: Any) -> bool:
    """Tell if a plain tree has a value at a path; of an object, the keys that the value names."""
    for part in path.split("."):
        tree = tree[int(part)] if isinstance(tree, list) else tree.get(part) if isinstance(tree, dict) else None
    if isinstance(value, dict):
        return isinstance(tree, dict) and all(holds(tree, key, inner) for key, inner in value.items())
    return bool(tree == value)


def _scalars(annotation: Any, now: Any) -> Iterator[Any]:
    allowed = parse_annotation(annotation)
    yield from (literal for literal in allowed.literals if literal != now)
    if bool in allowed.scalars:
        yield not now
    if int in allowed.scalars:
        yield now + 1 if type(now) is int else 3
    if float in allowed.scalars:
        yield now / 2 if isinstance(now, int | float) and now else 0.25
    if str in allowed.scalars:
        yield "other"
    if allowed.is_optional and now is not None:
        yield None


def _objects(annotation: Any) -> Iterator[dict[str, Any]]:
    for kind, cls in parse_annotation(annotation).specs.items():
        tag = {KIND: kind} if is_tagged(cls) else {}
        yield tag
        try:
            default = cls()
        except (TypeError, PretuneError):  # a field without a default
            continue
        for name, field in get_fields(cls).items():
            yield from ({**tag, name: other} for other in _scalars(field.annotation, getattr(default, name)))
