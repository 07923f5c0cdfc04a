"""Sandbox of chat templates (Jinja2): no code can be reached, and neither work nor texts grow without bound.

A template comes with a model, so it is not trusted. Jinja's sandbox refuses private attributes and changes of lists.
Here every pass of a loop and every call of a macro is counted, and the size of a text is checked where texts are built;
of operations that multiply sizes, before.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 50_000
"""Passes of loops and calls of macros in one rendering."""
MAX_CHARACTERS = 2**22
"""Characters of a text, and elements of a list, that a template builds."""
PART_CHARACTERS = 16
"""Characters that an element of a list counts for, beside its text."""
MAX_NUMBER = 256
"""Largest number that a function takes: widths, indents, counts."""
MAX_BITS = 128
"""Bits of a product."""
_WIDTH = re.compile(r"\d{3}|\*|\{[^{}]*\{")
"""Widths in a format string that are long, or computed."""
_WIDTH_FUNCTIONS = frozenset(
    {"batch", "center", "indent", "ljust", "rjust", "slice", "tojson", "truncate", "wordwrap", "zfill"}
)
"""Functions that take a width or a count."""
_CHEAP_FILTERS = frozenset({"count", "first", "last", "length"})
_BLOCKED_METHODS = frozenset({"expandtabs", "format_map", "maketrans", "to_bytes", "translate"})


class RefusedMessagesError(Exception):
    """The call of `raise_exception` in a template: the messages are not as it expects them."""


class GenerationTag(Extension):
    """The tag `{% generation %}` around answers, which is read over: answers are found without it."""

    tags = {"generation"}  # noqa: RUF012 (as the base)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The settings and functions of `apply_chat_template` of transformers, with bounds; not for two threads at once."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        extensions = [GenerationTag, "jinja2.ext.loopcontrols"]
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False, finalize=check_size
        )
        self.steps = 0
        self.concat = join_texts  # type: ignore[method-assign]
        self.filters = {name: _check_filter(name, function) for name, function in self.filters.items()}
        self.filters["tojson"] = _check_filter("tojson", _to_json)
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _format_now}
        del self.globals["lipsum"]

    def count_step(self) -> None:
        """Count a pass of a loop or a call. Raises a SecurityError for too many."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise SecurityError(f"it does not end within {MAX_STEPS} steps")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)):
            node.body.insert(0, nodes.ExprStmt(_call("count_step", [])))  # type: ignore[attr-defined]
        for parent in [tree, *tree.find_all(nodes.Node)]:
            for field, value in [*parent.iter_fields()]:
                if isinstance(value, list):
                    value[:] = [_replace_concatenation(child) for child in value]
                else:
                    setattr(parent, field, _replace_concatenation(value))
        tree.set_environment(self)
        return tree

    def join_values(self, *values: Any) -> str:
        """Return the text of `a ~ b`."""
        return join_texts(str(check_size(value)) for value in values)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse an attribute at once, not when its value is used."""
        raise SecurityError(f"it reaches for the attribute {attribute!r}")

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _BLOCKED_METHODS and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, int) and isinstance(right, int)
        if operator == "**":
            is_small = numbers and left.bit_length() * max(right, 0) <= MAX_BITS
            _require(is_small, "it computes a number that is too large")
        if operator == "*":
            if numbers:
                _require(left.bit_length() + right.bit_length() <= MAX_BITS, "it computes a number that is too large")
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                    _require(len(sequence) * count <= MAX_CHARACTERS, "it builds a text that is too long")
        if operator == "%" and isinstance(left, str):
            _check_operation("format", (left, right), {})
        return _check_length(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: object) -> Any:  # noqa: N805 (as the base)
        function = getattr(__obj, "__wrapped__", __obj)  # of a text's method `format`, which the sandbox replaces
        if isinstance(owner := getattr(function, "__self__", None), str):
            if function.__name__ == "join" and args:
                args = (_list_parts(owner, args[0]),)
            args = _check_operation(function.__name__, (owner, *args), kwargs)[1:]
        return _check_length(super().call(__context, __obj, *args, **kwargs))


def check_size(value: Any) -> Any:
    """Return a value whose text is not too long; the parts of a list count as often as they are in it."""
    size, parts = 0, [value]
    while parts:
        part = parts.pop()
        size += PART_CHARACTERS + (len(part) if isinstance(part, str) else 0)
        _require(size <= MAX_CHARACTERS, "it builds a text that is too long")
        if isinstance(part, Mapping):
            parts += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | set):
            parts += part
    return value


def join_texts(texts: Iterable[str]) -> str:
    """Return texts in a row, as long as they are not too long."""
    joined_texts, size = [], 0
    for text in texts:
        size += len(text)
        _require(size <= MAX_CHARACTERS, "it builds a text that is too long")
        joined_texts.append(text)
    return "".join(joined_texts)


def _call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    """Return the call of a method of the environment, which no name in a template can hide."""
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


def _replace_concatenation(node: Any) -> Any:
    return _call("join_values", node.nodes) if isinstance(node, nodes.Concat) else node


def _require(is_allowed: bool, problem: str) -> None:
    if not is_allowed:
        raise SecurityError(problem)


def _check_length(value: Any) -> Any:
    is_short = not isinstance(value, str | list | tuple) or len(value) <= MAX_CHARACTERS
    _require(is_short, "it builds a text that is too long")
    return value


def _check_operation(name: str, values: tuple[Any, ...], settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a function of texts; refuse those of a result that may be too long."""
    if name in _WIDTH_FUNCTIONS:
        numbers = [value for value in (*values[1:], *settings.values()) if isinstance(value, int | float)]
        _require(all(abs(number) <= MAX_NUMBER for number in numbers), f"{name} takes numbers up to {MAX_NUMBER}")
    if name == "format":
        _require(not _WIDTH.search(str(values[0])), "it formats a text with a long width")
    for value in values:
        check_size(value)
    if name == "replace" and len(values) > 2:
        growth = str(values[0]).count(str(values[1])) * len(str(values[2]))
        _require(growth <= MAX_CHARACTERS, "it builds a text that is too long")
    return values


def _list_parts(separator: object, parts: Iterable[Any]) -> list[Any]:
    """Return the parts of a text to join, checked with the separators between them."""
    listed_parts = check_size([*parts])
    size = len(str(separator)) * len(listed_parts)
    _require(size <= MAX_CHARACTERS, "it builds a text that is too long")
    return list(listed_parts)


def _check_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter with checked arguments and a checked result."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def run(*args: Any, **settings: object) -> Any:
        values = args[first:]
        if name == "join":
            values = (_list_parts(settings.get("d", values[1] if len(values) > 1 else ""), values[0]), *values[1:])
        return _check_length(function(*args[:first], *_check_operation(name, values, settings), **settings))

    return function if name in _CHEAP_FILTERS else run


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, allow_nan=False
    )


def _raise_exception(message: object) -> NoReturn:
    raise RefusedMessagesError(str(message))


def _format_now(form: str) -> str:
    _require(not re.search(r"%[^A-Za-z%]*\d", form), "it formats a date with a width")
    return datetime.now().strftime(form)
