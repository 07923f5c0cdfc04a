"""Checked keyword arguments: an unknown one is an error that names the nearest valid argument."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

from pretune.core.errors import UsageError, suggest
from pretune.core.migration import RENAMED_ARGUMENTS
from pretune.core.synonyms import find_synonyms

P = ParamSpec("P")
R = TypeVar("R")


class UnknownArgumentError(UsageError, TypeError):
    """A keyword argument that a function does not have."""


def check_arguments(paths: Collection[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that rejects unknown keyword arguments with a suggestion.

    `inspect.signature` and `help` show the decorated function's own signature. `paths` are the settings that its
    argument `overrides` takes: an argument that is one of them is suggested in that form.

    >>> @check_arguments()
    ... def train(model: str, *, lr: float = 1e-3) -> None: ...
    >>> train("bert", learning_rate=1e-4)
    Traceback (most recent call last):
        ...
    pretune.core.arguments.UnknownArgumentError: train: unknown argument 'learning_rate'; did you mean 'lr'?
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = [
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]

        @functools.wraps(function)
        def call_with_check(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in names:
                    hint = _suggest_argument(name, names, paths)
                    raise UnknownArgumentError(f"{function.__name__}: unknown argument '{name[:60]}'{hint}")
            return function(*args, **kwargs)

        return call_with_check

    return decorate


def _suggest_argument(name: str, names: list[str], paths: Collection[str]) -> str:
    for candidate in [RENAMED_ARGUMENTS.get(name, name), *find_synonyms(name)]:
        if candidate in names:
            return f"; did you mean '{candidate}'?"
        for path in paths:
            if path == candidate or path.endswith(f".{candidate}"):
                return f"; use overrides={{'{path}': …}}"
    return suggest(name, names) or f" (arguments: {', '.join(names)})"
