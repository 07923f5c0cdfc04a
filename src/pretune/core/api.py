"""Parts of all public functions: checked keyword arguments, results, and options of verbs.

An unknown argument is an error that names the nearest valid one. A result has the same facts as a dictionary, as a
table in a notebook, and as a pandas data frame.

Options of a verb are one frozen value, from which its command line, its settings and its checks
are derived.

    @option_set
    class TrainOptions(Options):
        model: str | None = option("MODEL", "Model to train.")
        steps: int | None = option("--steps N", "Training steps.", sets="train.steps")

    TrainOptions(model="bert-mini", steps=100).list_settings()     # {'train.steps': 100}

The fields are the arguments of the public function of the verb.
"""

import dataclasses
import functools
import html
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, dataclass_transform

from pretune.core.errors import UsageError, find_synonyms, suggest

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]  # noqa: ICN001


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
    pretune.core.api.UnknownArgumentError: train: unknown argument 'learning_rate'; did you mean 'lr'?
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = [*inspect.signature(function).parameters]

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
    for candidate in [name, *find_synonyms(name)]:
        if candidate in names:
            return f"; did you mean '{candidate}'?"
        for path in paths:
            if path == candidate or path.endswith(f".{candidate}"):
                return f"; use overrides={{'{path}': …}}"
    return suggest(name, names) or f" (arguments: {', '.join(names)})"


class Result:
    """Base of results: a subclass states `to_dict`, and `to_rows` where it is a table of several rows."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, ready for JSON."""
        raise NotImplementedError

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the result as a table; one row by default."""
        return [flatten(self.to_dict())]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a data frame. Raises UsageError where pandas is not installed."""
        try:
            import pandas  # noqa: ICN001
        except ImportError:
            raise UsageError("pandas is not installed; install it with `pip install pandas`") from None
        return pandas.DataFrame(self.to_rows())

    def _repr_html_(self) -> str:
        return render_table(self.to_rows())


class PathResult(Result, os.PathLike[str]):
    """Result in a directory; accepted wherever its path is."""

    __slots__ = ()
    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


class ResultList(list[Any], Result):
    """A list of results of one kind, as one table."""

    def to_dict(self) -> dict[str, Any]:
        """Return the results as plain data, under the key `results`."""
        return {"results": [result.to_dict() for result in self]}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the rows of all results."""
        return [row for result in self for row in result.to_rows()]


def flatten(tree: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Return a tree as one row: the scalars of nested mappings by their dotted paths; lists are left out.

    >>> flatten({"task": "sst2", "scores": {"accuracy": 0.9}, "notes": ["a"]})
    {'task': 'sst2', 'scores.accuracy': 0.9}
    """
    row: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            row |= flatten(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, str | int | float | bool):
            row[f"{prefix}{name}"] = value
    return row


def render_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as an HTML table; everything in it is escaped."""
    columns = [*dict.fromkeys(name for row in rows for name in row)]

    def render_row(cells: Iterable[Any], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(_format_cell(cell))}</{tag}>' for cell in cells)}</tr>"

    body = "".join(render_row([row.get(name) for name in columns], "td") for row in rows)
    return f"<table><thead>{render_row(columns, 'th')}</thead><tbody>{body}</tbody></table>"


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


StrPath = str | os.PathLike[str]
ConfigSource = Mapping[str, Any] | str | os.PathLike[str]
"""Settings: a tree, or the file of one."""
C = TypeVar("C")
T = TypeVar("T", bound="Options")

_OPTION = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """Description of a field: its spelling on the command line, its help, and the setting that it stands for."""

    usage: str
    """Names and metavar as the help prints them: `-k --hits N`; without a name, an argument: `MODEL`."""
    about: str
    _: KW_ONLY
    sets: str = ""
    """Path in the config of the run."""
    kind: Any = None
    """Type of the typed text; None: that of the annotation."""
    typed: str | None = None
    """Default as the help prints it; None: that of the field."""
    parse: Callable[[Any], Any] | None = None
    """Converts what was typed to the value of the field."""
    names: tuple[str, ...] = ()
    """Completions: names, or `module:ATTRIBUTE` of a registry of names."""
    separator: str = ""
    """Separator of several names."""
    suffix: str = ""
    """End of each completion."""
    is_required: bool = False

    @property
    def flag(self) -> str:
        """Last name of the option, as messages print it."""
        return next((word for word in reversed(self.usage.split()) if word.startswith("-")), self.usage).split("/")[0]

    def field(self, *, default: Any = None, **changes: Any) -> Any:
        """Return a field with this description, or with a changed one."""
        return dataclasses.field(default=default, metadata={_OPTION: dataclasses.replace(self, **changes)})


def option(usage: str, about: str, *, default: Any = None, **details: Any) -> Any:
    """Return a field with the description of an option."""
    return Option(usage, about, **details).field(default=default)


def positional(entry: Option, *, default: Any, kw_only: Literal[False]) -> Any:
    """Return a field that functions take by position, too. `kw_only` stands in each call for type checkers."""
    return dataclasses.field(default=default, kw_only=kw_only, metadata={_OPTION: entry})


def setting(path: str) -> Any:
    """Return a field that sets a path of the config, without an option on the command line."""
    return option("", "", sets=path)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(positional,))
def option_set(cls: type[C]) -> type[C]:
    """Make a class the options of a verb: a frozen, keyword-only dataclass."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


class Options:
    """Base of the options of a verb."""

    __slots__ = ()

    @classmethod
    def describe(cls) -> dict[str, Option]:
        """Return the options of the command line, by field."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        return {field.name: field.metadata[_OPTION] for field in fields if _OPTION in field.metadata}

    def list_changes(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = ((field, getattr(self, field.name)) for field in fields)
        return {field.name: value for field, value in values if value is not None and value != field.default}

    def list_settings(self) -> dict[str, Any]:
        """Return the values of the settings that the options set, by path."""
        paths = {name: entry.sets for name, entry in self.describe().items() if entry.sets}
        return {
            paths[name]: os.fspath(value) if isinstance(value, os.PathLike) else value
            for name, value in self.list_changes().items()
            if name in paths
        }

    def convert(self, cls: type[T], reason: str, **changes: object) -> T:
        """Return options of another class with the same values, except for `changes`, of which None is left out.

        A UsageError gives the `reason` for an option that the class lacks.
        """
        names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        values = {**self.list_changes(), **changes}
        values = {name: value for name, value in values.items() if value is not None}
        for name in values:
            if name not in names:
                raise UsageError(f"{self.describe()[name].flag} {reason}")
        return cls(**values)


def take_options(
    cls: Callable[P, T], *, required_names: Collection[str] = (), paths: Collection[str] = ()
) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Return a decorator that gives a function of options their fields as its arguments.

    Arguments in `required_names` have no default, although a dry run on the command line lacks them. `paths` are as in
    `check_arguments`.
    """

    def decorate(function: Callable[[T], R]) -> Callable[P, R]:
        arguments = inspect.signature(cls).parameters.values()
        signature = inspect.Signature(
            [part.replace(default=part.empty) if part.name in required_names else part for part in arguments],
            return_annotation=inspect.signature(function).return_annotation,
        )

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            signature.bind(*args, **kwargs)  # raises where a required argument is missing
            return function(cls(*args, **kwargs))

        call.__signature__ = signature  # type: ignore[attr-defined]
        return check_arguments(paths)(call)

    return decorate


def require_out(out: StrPath | None, noun: str = "run") -> StrPath:
    """Return the output directory of a run or a study, which only a dry run lacks."""
    if out is None:
        raise UsageError(f"missing option '--out': the output directory of the {noun}")
    return out
