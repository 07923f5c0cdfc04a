"""Options and arguments of verbs, and their shell completion, without importing what they name.

A parameter of a verb stands for the fields of an options class, each of which is described by an `Option`:

    steps: int | None = option("--steps N", "Training steps.")
"""

import dataclasses
import inspect
import os
import types
import typing
from collections.abc import Callable, Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pretune.core.api import Option, Options, option, option_set
from pretune.core.errors import UsageError

Completer = Callable[[str], list[str]]

POOLINGS = ("mean", "cls", "max", "last", "mean_sqrt", "weighted", "static")
SHAPES = ("encoder", "decoder", "encoder-decoder", "two-way", "generator-discriminator", "two-stream")
SPEC_PATHS = ("depth", "heads", "vocab", "width")
"""Frequently changed parts of a model's spec."""


@option_set
class OutputFormat(Options):
    """Format of the output."""

    as_json: bool = option("--json", "Print JSON.", default=False)

    @property
    def is_text(self) -> bool:
        """True if the output is for people."""
        return not self.as_json


@option_set
class TableFormat(OutputFormat):
    """Format of the output of a verb that prints a table."""

    as_csv: bool = option("--csv", "Print CSV.", default=False)

    def __post_init__(self) -> None:
        if self.as_json and self.as_csv:
            raise UsageError("--json and --csv exclude each other; choose one")

    @property
    def is_text(self) -> bool:
        return not self.as_json and not self.as_csv


# Options that are set.


def list_flags(options: Options, *names: str) -> list[str]:
    """Return the names of those options that differ from their defaults, as messages print them."""
    changes, entries = options.list_changes(), options.describe()
    return [entries[name].flag for name in names if name in changes]


def list_words(options: Options, *names: str) -> list[object]:
    """Return those options that differ from their defaults, as they are typed."""
    changes, entries = options.list_changes(), options.describe()
    return [word for name in names if name in changes for word in (entries[name].flag, changes[name])]


# From options to typer's parameters.


def derive_command(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a function for typer, in which the fields of options stand in place of each parameter that holds them."""
    groups = {name: part.annotation for name, part in inspect.signature(verb, eval_str=True).parameters.items()}

    def run(**values: Any) -> None:
        arguments: dict[str, Options] = {}
        for name, cls in groups.items():
            field_values = {key: _convert(entry, values[key]) for key, entry in cls.describe().items() if key in values}
            arguments[name] = cls(**{key: value for key, value in field_values.items() if value is not None})
        verb(**arguments)

    parts = [
        _derive_parameter(entry, cls.__dataclass_fields__[name])
        for cls in groups.values()
        for name, entry in cls.describe().items()
        if entry.usage
    ]
    run.__doc__ = verb.__doc__
    run.__signature__ = inspect.Signature(parts)  # type: ignore[attr-defined]
    run.__annotations__ = {part.name: part.annotation for part in parts}
    return run


def _convert(entry: Option, value: Any) -> Any:
    """Return the value of what was typed; None where the default of the field applies."""
    text = value.value if isinstance(value, StrEnum) else value
    return text if entry.parse is None or text is None else entry.parse(text)


def _derive_parameter(entry: Option, field: "dataclasses.Field[Any]") -> inspect.Parameter:
    """Return typer's parameter."""
    kind, default = entry.kind or _choose_type(field.type), field.default
    if entry.is_required:
        default = inspect.Parameter.empty
    elif entry.typed is not None:
        default = entry.typed
    elif isinstance(kind, type) and issubclass(kind, StrEnum) and isinstance(default, str):
        default = kind(default)
    elif not isinstance(default, bool | int | float | str | Path):
        default = None
    kind = kind if default is not None else kind | None
    annotation: Any = Annotated[kind, describe_option(entry)]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def describe_option(entry: Option, *, is_eager: bool = False, callback: Callable[..., None] | None = None) -> Any:
    """Return typer's description of an option or argument; its usage holds the names and the metavar of the help."""
    complete = complete_names(*entry.names, separator=entry.separator, suffix=entry.suffix) if entry.names else None
    words = entry.usage.split()
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(names) :]) or None
    kind = typer.Option if names else typer.Argument
    return kind(
        *names, metavar=metavar, help=entry.about, autocompletion=complete, is_eager=is_eager, callback=callback
    )


def _choose_type(annotation: Any) -> Any:
    """Return the type of typed text for the annotation of a field."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    parts = typing.get_args(annotation) if is_union else (annotation,)
    origins = [typing.get_origin(part) or part for part in parts]
    if any(isinstance(origin, type) and issubclass(origin, os.PathLike) for origin in origins):
        return Path
    if Literal in origins:
        values = typing.get_args(parts[origins.index(Literal)])
        return StrEnum("Choice", {value: value for value in values})
    if list in origins:
        return parts[origins.index(list)]
    return list[str] if Sequence in origins else next(kind for kind in (bool, str, int, float) if kind in origins)


# Completion.


def complete_names(*sources: str, separator: str = "", suffix: str = "") -> Completer:
    """Return a completer of names; a source is a name, or the registry `module:ATTRIBUTE` of names.

    The suffix ends each completion. With a separator, the last part is completed; earlier parts stay and are not
    offered again.
    """

    def complete(incomplete: str = "") -> list[str]:
        prefix, mark, part = incomplete.rpartition(separator) if separator else ("", "", incomplete)
        previous = prefix.split(separator) if separator else []
        names = [name for source in sources for name in _list_names(source)]
        return [f"{prefix}{mark}{name}{suffix}" for name in names if name.startswith(part) and name not in previous]

    return complete


def _list_names(source: str) -> list[str]:
    module, _, attribute = source.partition(":")
    if not attribute.isidentifier():
        return [source]
    names = getattr(import_module(module), attribute)
    return [*(names() if callable(names) and not attribute.isupper() else names)]


def list_setting_paths(verb: str | None) -> tuple[str, ...]:
    """Return the settings of a verb that `--set` completes."""
    from pretune.runs.options import PretrainOptions
    from pretune.runs.task_options import FinetuneOptions

    if verb == "show":
        return SPEC_PATHS
    classes: dict[str | None, type[Options]] = {"pretrain": PretrainOptions, "finetune": FinetuneOptions}
    return classes[verb].describe()["overrides"].names if verb in classes else ()


DtypeName = Literal["float32", "float16", "bfloat16"]


EMBEDDING_MODEL = Option(
    "MODEL", "Run, Hugging Face directory, hf:OWNER/NAME, or word vectors.", kind=str, is_required=True
)
LAYER = Option("--layer N", "Layer, 0 (embeddings) to depth; -1 is the last.")
DTYPE = Option("--dtype", "Data type of the weights.")
LENGTH = Option("--length N", "Maximum length in tokens; longer texts are truncated.")
PROMPT = Option("--prompt TEXT", "Prompt prepended to every text.")
