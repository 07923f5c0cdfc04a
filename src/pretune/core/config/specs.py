"""Specs: frozen, keyword-only dataclasses with slots, their kinds, their plain form and the types of their fields."""

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, dataclass_transform, overload

from pretune.core.errors import UsageError, suggest

T = TypeVar("T")

KIND = "kind"
"""Key of a spec's class in its plain form; no field may have this name."""


@overload
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def spec(cls: type[T], /) -> type[T]:
    """Make a class a spec whose kind is its snake_case name."""


@overload
def spec(*, kind: str | None = None, has_kind: bool = True) -> Callable[[type[T]], type[T]]:
    """Return the decorator for a spec with another kind, or with none in its plain form."""


def spec(cls: type[T] | None = None, /, *, kind: str | None = None, has_kind: bool = True) -> Any:
    """Make a class a spec: `dataclass(frozen=True, kw_only=True, slots=True)` that checks its literals.

    Used as `@spec` or `@spec(kind="prefix")`. `kind` is the name of the class in files and settings, by default its
    snake_case name, so that a class can be renamed without changing files. With `has_kind=False` the plain form has no
    key `kind`: for classes that stand where only one class is possible.
    """
    if cls is None:
        return functools.partial(_make_spec, kind=kind, has_kind=has_kind)
    return _make_spec(cls, kind=kind, has_kind=has_kind)


def _make_spec(cls: type[T], *, kind: str | None, has_kind: bool) -> type[T]:
    if KIND in cls.__annotations__:
        raise TypeError(f"{cls.__name__}: a spec may not have a field named '{KIND}'")
    inner: Callable[[Any], None] | None = getattr(cls, "__post_init__", None)

    def post_init(self: Any) -> None:
        check_literals(self)
        if inner is not None:
            inner(self)

    cls.__post_init__ = post_init  # type: ignore[attr-defined]
    spec_class = dataclasses.dataclass(frozen=True, kw_only=True, slots=True)(cls)
    if kind is not None:
        _KINDS[spec_class] = kind
    if not has_kind:
        _KINDLESS.add(spec_class)
    return spec_class


_KINDS: dict[type, str] = {}
"""Kinds that classes state themselves."""
_KINDLESS: set[type] = set()
"""Classes whose plain form does not name their kind."""


def check_literals(spec: Any) -> None:
    """Raise a UsageError for a value that its `Literal` field does not list; data from files get stricter checks."""
    for name, literals in _get_literals(type(spec)).items():
        value = getattr(spec, name)
        if not any(type(value) is type(literal) and value == literal for literal in literals):
            words = [literal for literal in literals if isinstance(literal, str)]
            hint = suggest(value, words) if isinstance(value, str) else ""
            options = ", ".join(map(repr, literals))
            raise UsageError(f"{type(spec).__name__}: invalid {name} {str(value)[:60]!r}{hint} (allowed: {options})")


_LITERALS: dict[type, dict[str, tuple[Any, ...]]] = {}


def _get_literals(cls: type) -> dict[str, tuple[Any, ...]]:
    """Return the fields of a spec class that hold only literals or None, with their allowed values."""
    if cls not in _LITERALS:
        _LITERALS[cls] = _find_literals(cls)
    return _LITERALS[cls]


def _find_literals(cls: type) -> dict[str, tuple[Any, ...]]:
    allowed_values: dict[str, tuple[Any, ...]] = {}
    for name, field in get_fields(cls).items():
        parts = _flatten(field.annotation)
        literals = [part for part in parts if typing.get_origin(part) is Literal]
        if literals and all(part in (None, types.NoneType) or part in literals for part in parts):
            values = [value for part in literals for value in typing.get_args(part)]
            allowed_values[name] = (*values, *([None] if len(literals) < len(parts) else []))
    return allowed_values


def get_kind(spec: object) -> str:
    """Return the kind of a spec, given the class or an instance: as stated, else LayerNorm -> 'layer_norm'."""
    cls = spec if isinstance(spec, type) else type(spec)
    if cls in _KINDS:
        return _KINDS[cls]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()


def is_tagged(cls: type) -> bool:
    """Return whether the plain form of a spec class has the key `kind`."""
    return cls not in _KINDLESS


def is_spec(value: object) -> bool:
    """Return whether a value is a spec (an instance, not a class)."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def to_dict(spec: object) -> dict[str, Any]:
    """Return the plain, JSON-ready form: `kind` first (if the class has one), then every field; tuples become lists."""
    if not is_spec(spec):
        raise TypeError(f"expected a spec, got {type(spec).__name__}")
    tag = {} if type(spec) in _KINDLESS else {KIND: get_kind(spec)}
    return {**tag, **{name: to_plain(getattr(spec, name)) for name in get_fields(type(spec))}}


def to_plain(value: Any) -> Any:
    """Return the plain form of a field's value, sharing no mutable data with it."""
    if is_spec(value):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


class Field(NamedTuple):
    """Field of a spec class: its resolved annotation and a factory of its default (None if it has none)."""

    annotation: Any
    default: Callable[[], Any] | None


_FIELDS: dict[type, dict[str, Field]] = {}


def get_fields(cls: type) -> dict[str, Field]:
    """Return the constructor fields of a spec class, in order."""
    if cls not in _FIELDS:
        _FIELDS[cls] = _find_fields(cls)
    return _FIELDS[cls]


def _find_fields(cls: Any) -> dict[str, Field]:
    hints = typing.get_type_hints(cls)
    result: dict[str, Field] = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        default: Callable[[], Any] | None = None
        if field.default is not dataclasses.MISSING:
            default = functools.partial(_return_value, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory
        result[field.name] = Field(hints[field.name], default)
    return result


class FieldType(NamedTuple):
    """Parsed annotation: the values a field may hold."""

    scalars: tuple[type, ...]  # of int, float, str, bool
    literals: tuple[Any, ...]
    specs: dict[str, type]  # by kind
    tuples: tuple[Any, ...]  # the tuple annotations
    is_optional: bool

    def __str__(self) -> str:
        words = [scalar.__name__ for scalar in self.scalars]
        words += [repr(literal) for literal in self.literals]
        words += list(self.specs)
        words += ["a list"] if self.tuples else []
        words += ["null"] if self.is_optional else []
        return " or ".join(words)


@functools.cache
def parse_annotation(annotation: Any) -> FieldType:
    """Parse an annotation; an unsupported one is a bug in the spec and raises a TypeError."""
    scalars: list[type] = []
    literals: list[Any] = []
    specs: dict[str, type] = {}
    tuples: list[Any] = []
    is_optional = False
    for part in _flatten(annotation):
        if part in (int, float, str, bool):
            scalars.append(part)
        elif part in (None, types.NoneType):
            is_optional = True
        elif typing.get_origin(part) is Literal:
            literals.extend(typing.get_args(part))
        elif typing.get_origin(part) is tuple:
            tuples.append(part)
        elif isinstance(part, type) and dataclasses.is_dataclass(part):
            if specs.setdefault(get_kind(part), part) is not part:
                raise TypeError(f"two specs of kind '{get_kind(part)}' in {annotation}")
        else:
            raise TypeError(f"a spec field cannot be annotated with {part}")
    return FieldType(tuple(scalars), tuple(literals), specs, tuple(tuples), is_optional)


def get_item_types(annotation: Any, count: int) -> list[Any] | None:
    """Return the annotations of the items of a tuple of `count` items; None if the count does not fit."""
    arguments = typing.get_args(annotation)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return [arguments[0]] * count
    return list(arguments) if len(arguments) == count else None


def _flatten(annotation: Any) -> list[Any]:
    if hasattr(annotation, "__value__"):  # `type X = A | B` of Python 3.12
        return _flatten(annotation.__value__)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [part for argument in typing.get_args(annotation) for part in _flatten(argument)]
    return [annotation]


def _return_value(value: Any) -> Any:
    return value
