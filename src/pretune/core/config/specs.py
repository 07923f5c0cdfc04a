"""Specs: frozen, keyword-only dataclasses with slots, their kinds, their plain form and the types of their fields.

Ranges are part of a field's type: `rate: Annotated[float, Gt(0), Le(1)]`. Every new spec is checked against them.
"""

import dataclasses
import functools
import math
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform, overload

from pretune.core.errors import MAX_NAME_BYTES, MAX_PATH_BYTES, PretuneError, UsageError, is_possible_path, suggest

T = TypeVar("T")
N = TypeVar("N", int, float)

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
    """Make a class a spec: `dataclass(frozen=True, kw_only=True, slots=True)` that checks literals and ranges.

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
        check_fields(self)
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


class FieldError(UsageError):
    """A value outside the range of its field; `problem` is the message without the name of the class."""

    def __init__(self, message: str, problem: str = "") -> None:
        super().__init__(message)
        self.problem = problem or message


class Constraint:
    """Condition on a value, in the annotation of a field; its text completes "must be …"."""

    __slots__ = ()

    def allows(self, value: Any) -> bool:
        """Return whether the value meets the condition."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, slots=True)
class Bound(Constraint):
    """Limit of a number; infinite numbers are outside."""

    limit: float
    sign: ClassVar[str]
    compare: ClassVar[Callable[[Any, Any], bool]]

    def allows(self, value: Any) -> bool:
        return value is not None and type(self).compare(value, self.limit) and abs(value) < math.inf

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:{',' if isinstance(self.limit, int) else 'g'}}"


class Gt(Bound):
    """Lower limit that is excluded."""

    sign, compare = ">", operator.gt


class Ge(Bound):
    """Lower limit that is included."""

    sign, compare = ">=", operator.ge


class Lt(Bound):
    """Upper limit that is excluded."""

    sign, compare = "<", operator.lt


class Le(Bound):
    """Upper limit that is included."""

    sign, compare = "<=", operator.le


@dataclasses.dataclass(frozen=True, slots=True)
class NonEmpty(Constraint):
    """At least one item in a tuple."""

    def allows(self, value: Any) -> bool:
        return len(value) > 0

    def __str__(self) -> str:
        return "non-empty"


class SumsToOne(Constraint):
    """Sum of 1 over a tuple of shares."""

    def allows(self, value: Any) -> bool:
        return bool(abs(sum(value) - 1) <= 1e-6)

    def __str__(self) -> str:
        return "shares with a sum of 1"


@dataclasses.dataclass(frozen=True, slots=True)
class PossiblePath(Constraint):
    """Text that a system accepts as a path, whether it exists or not: looking it up is no error."""

    def allows(self, value: Any) -> bool:
        return is_possible_path(value)

    def __str__(self) -> str:
        return f"a path, with names of at most {MAX_NAME_BYTES} bytes and {MAX_PATH_BYTES:,} bytes in all"


def check_path(path: str | os.PathLike[str], error: type[PretuneError] = UsageError) -> Path:
    """Return a path; raise `error` for text that no system accepts as one."""
    if not is_possible_path(path):
        raise error(f"{os.fspath(path)[:60]!r} is not {PossiblePath()}")
    return Path(path)


Positive = Annotated[N, Gt(0)]
NonNegative = Annotated[N, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
Seed = Annotated[int, Ge(0), Lt(2**63)]
PathText = Annotated[str, PossiblePath()]


class FieldRule(NamedTuple):
    """Restrictions of an annotation: the literals, the bounds, and the rules of a tuple's items."""

    literals: tuple[Any, ...]
    bounds: tuple[Constraint, ...]
    items: tuple["FieldRule | None", ...]  # of a tuple of any length: one rule
    is_optional: bool

    def find_problem(self, value: Any, path: str) -> str | None:
        """Return the message about a value that breaks the rule, else None."""
        if value is None and self.is_optional:
            return None
        if self.literals and not any(type(value) is type(literal) and value == literal for literal in self.literals):
            words = [literal for literal in self.literals if isinstance(literal, str)]
            hint = suggest(value, words) if isinstance(value, str) else ""
            return f"{path} must be one of {', '.join(map(repr, self.literals))}, got {str(value)[:60]!r}{hint}"
        if not all(bound.allows(value) for bound in self.bounds):
            return f"{path} must be {' and '.join(map(str, self.bounds))}, got {str(value)[:60]}"
        if self.items and isinstance(value, tuple | list):
            rules = self.items * len(value) if len(self.items) == 1 else self.items
            for i, (rule, item) in enumerate(zip(rules, value, strict=False)):
                if rule is not None and (problem := rule.find_problem(item, f"{path}.{i}")):
                    return problem
        return None


def check_fields(spec: Any) -> None:
    """Raise a FieldError for a value outside the literals or the range of its field."""
    for name, rule in _get_rules(type(spec)).items():
        if problem := rule.find_problem(getattr(spec, name), name):
            raise FieldError(f"{type(spec).__name__}.{problem}", problem)


_RULES: dict[type, dict[str, FieldRule]] = {}


def _get_rules(cls: type) -> dict[str, FieldRule]:
    """Return the rules of the fields that have one."""
    if cls not in _RULES:
        rules = {name: parse_rule(field.annotation) for name, field in get_fields(cls).items()}
        _RULES[cls] = {name: rule for name, rule in rules.items() if rule is not None}
    return _RULES[cls]


def parse_rule(annotation: Any) -> FieldRule | None:
    """Return the restrictions of an annotation; None if it has none, or if it also allows values without them."""
    parts = [part for part in _flatten(annotation) if part not in (None, types.NoneType)]
    is_optional = len(parts) < len(_flatten(annotation))
    if parts and all(typing.get_origin(part) is Literal for part in parts):
        return FieldRule(tuple(value for part in parts for value in typing.get_args(part)), (), (), is_optional)
    items: tuple[FieldRule | None, ...] = ()
    if len(parts) == 1 and typing.get_origin(parts[0]) is tuple:
        items = tuple(parse_rule(part) for part in typing.get_args(parts[0]) if part is not Ellipsis)
    bounds = tuple(_find_bounds(annotation))
    return FieldRule((), bounds, items, is_optional) if bounds or any(items) else None


def _find_bounds(annotation: Any) -> list[Constraint]:
    if typing.get_origin(annotation) is Annotated:
        outer_bounds = [bound for bound in annotation.__metadata__ if isinstance(bound, Constraint)]
        return [*_find_bounds(annotation.__origin__), *outer_bounds]  # NOTE: as in Annotated[Positive[int] | None, …]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [bound for part in typing.get_args(annotation) for bound in _find_bounds(part)]
    return []


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


def to_dict(spec: object, *, for_hash: bool = False) -> dict[str, Any]:
    """Return the plain, JSON-ready form: `kind` first (if the class has one), then every field; tuples become lists.

    `for_hash` leaves out fields that have their default: a new field changes no hash of an older file.
    """
    if not is_spec(spec):
        raise TypeError(f"expected a spec, got {type(spec).__name__}")
    tag = {} if type(spec) in _KINDLESS else {KIND: get_kind(spec)}
    fields = {
        name: to_plain(getattr(spec, name), for_hash=for_hash)
        for name, field in get_fields(type(spec)).items()
        if not (for_hash and field.default and getattr(spec, name) == field.default())
    }
    return {**tag, **fields}


def to_plain(value: Any, *, for_hash: bool = False) -> Any:
    """Return the plain form of a field's value, sharing no mutable data with it."""
    if is_spec(value):
        return to_dict(value, for_hash=for_hash)
    if isinstance(value, Mapping):
        return {key: to_plain(item, for_hash=for_hash) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item, for_hash=for_hash) for item in value]
    return value


class Field(NamedTuple):
    """Field of a spec class: its resolved annotation and a factory of its default (None if it has none)."""

    annotation: Any
    default: Callable[[], Any] | None


_FIELDS: dict[type, dict[str, Field]] = {}


def get_fields(cls: Any) -> dict[str, Field]:
    """Return the constructor fields of a spec class, in order."""
    if cls not in _FIELDS:
        hints, fields = typing.get_type_hints(cls, include_extras=True), dataclasses.fields(cls)
        _FIELDS[cls] = {field.name: Field(hints[field.name], _get_default(field)) for field in fields if field.init}
    return _FIELDS[cls]


def _get_default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default is not dataclasses.MISSING:
        return lambda: field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory


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
    if typing.get_origin(annotation) is Annotated:
        return _flatten(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [part for argument in typing.get_args(annotation) for part in _flatten(argument)]
    return [annotation]
