"""Options and arguments of verbs, and their shell completion, without importing what they name.

    steps: Annotated[int | None, option("--steps N", "Training steps.")] = None

Options that several verbs share are types here: `device: DeviceName = None`.
"""

import inspect
import os
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pretune.core.api import Option, Options, option_set
from pretune.core.api import option as field
from pretune.core.errors import UsageError

Completer = Callable[[str], list[str]]

POOLINGS = ("mean", "cls", "max", "last", "mean_sqrt", "weighted", "static")
SHAPES = ("encoder", "decoder", "encoder-decoder", "two-way", "generator-discriminator", "two-stream")
SPEC_PATHS = ("depth", "heads", "vocab", "width")
"""Frequently changed parts of a model's spec."""


def option(usage: str, about: str, complete: Completer | None = None, **more: Any) -> Any:
    """Return an option for `Annotated`; `usage` holds its names and its metavar, as the help prints them."""
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(names) :]) or None
    return typer.Option(*names, metavar=metavar, help=about, autocompletion=complete, **more)


def argument(metavar: str, about: str, complete: Completer | None = None) -> Any:
    """Return a positional argument for `Annotated`."""
    return typer.Argument(metavar=metavar, help=about, autocompletion=complete)


@option_set
class OutputFormat(Options):
    """Format of the output."""

    as_json: bool = field("--json", "Print JSON.", default=False)

    @property
    def is_text(self) -> bool:
        """True if the output is for people."""
        return not self.as_json


@option_set
class TableFormat(OutputFormat):
    """Format of the output of a verb that prints a table."""

    as_csv: bool = field("--csv", "Print CSV.", default=False)

    def __post_init__(self) -> None:
        check_format(self.as_json, self.as_csv)

    @property
    def is_text(self) -> bool:
        return not self.as_json and not self.as_csv


def check_format(as_json: bool, as_csv: bool) -> None:
    """Raise where two output formats are requested."""
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other; choose one")


# From options to typer's parameters.


def derive_command(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a function for typer, in which the fields of options stand in place of each parameter that holds them."""
    parameters = inspect.signature(verb, eval_str=True).parameters
    classes = {name: get_options_class(parameter.annotation) for name, parameter in parameters.items()}

    def run(**values: object) -> None:
        verb(**{name: values[name] if cls is None else _build(cls, values) for name, cls in classes.items()})

    run.__doc__ = verb.__doc__
    pieces = [
        part for name, cls in classes.items() for part in ([parameters[name]] if cls is None else _iter_parameters(cls))
    ]
    parts = [part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in pieces]
    run.__signature__ = inspect.Signature(parts)  # type: ignore[attr-defined]
    run.__annotations__ = {part.name: part.annotation for part in parts}
    return run


def get_options_class(annotation: object) -> type[Options] | None:
    """Return the class of options that an annotation names, if any."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Options) else None


def _build(cls: type[Options], values: dict[str, object]) -> Options:
    """Return options from what was typed; those left out have the defaults of the class."""
    entries, arguments = cls.describe(), {}
    for name, value in values.items():
        if name in entries and value is not None:
            parse = entries[name].parse
            text = value.value if isinstance(value, StrEnum) else value
            arguments[name] = text if parse is None else parse(text)
    return cls(**arguments)


def _iter_parameters(cls: type[Options]) -> Iterator[inspect.Parameter]:
    fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
    for name, entry in cls.describe().items():
        if not entry.usage:
            continue
        default, kind = fields[name].default, entry.kind or _choose_type(fields[name].type)
        if entry.is_required:
            default = inspect.Parameter.empty
        elif entry.typed is not None:
            default = entry.typed
        elif isinstance(kind, type) and issubclass(kind, StrEnum) and default is not None:
            default = kind(default)
        elif not isinstance(default, bool | int | float | str):
            default = None
        kind = kind if default is not None else kind | None
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, _describe(entry)],
        )


def _describe(entry: Option) -> Any:
    """Return typer's description of an option or argument."""
    complete = complete_names(*entry.names, separator=entry.separator) if entry.names else None
    if not entry.usage.startswith("-"):
        return argument(entry.usage, entry.about, complete)
    return option(entry.usage, entry.about, complete)


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
    return list[str] if Sequence in origins else next(kind for kind in (bool, str, int, float) if kind in origins)


# Completion.


def complete_names(*sources: str, separator: str = "") -> Completer:
    """Return a completer of names; a source is a name, or the registry `module:ATTRIBUTE` of names.

    With a separator, the last part is completed; earlier parts stay and are not offered again.
    """

    def complete(incomplete: str = "") -> list[str]:
        prefix, mark, part = incomplete.rpartition(separator) if separator else ("", "", incomplete)
        previous = prefix.split(separator) if separator else []
        names = [name for source in sources for name in _list_names(source)]
        return [f"{prefix}{mark}{name}" for name in names if name.startswith(part) and name not in previous]

    return complete


def _list_names(source: str) -> list[str]:
    module, _, attribute = source.partition(":")
    if not attribute.isidentifier():
        return [source]
    names = getattr(import_module(module), attribute)
    return [*(names() if callable(names) and not attribute.isupper() else names)]


complete_devices = complete_names("cpu", "cuda", "cuda:0")
complete_families = complete_names("pretune.models.families:list_names")
complete_poolings = complete_names(*POOLINGS)
complete_shapes = complete_names(*SHAPES)
complete_objectives = complete_names("pretune.objectives:OBJECTIVES")
complete_spec_paths = complete_names(*(f"{path}=" for path in SPEC_PATHS))


def list_setting_paths(verb: str | None) -> tuple[str, ...]:
    """Return the settings of a verb that `--set` completes."""
    from pretune.runs.options.pretrain import PretrainOptions
    from pretune.runs.options.tasks import FinetuneOptions

    if verb == "show":
        return SPEC_PATHS
    classes: dict[str | None, type[Options]] = {"pretrain": PretrainOptions, "finetune": FinetuneOptions}
    names = classes[verb].describe()["overrides"].names if verb in classes else ()
    return tuple(name.rstrip("=") for name in names)


DtypeName = Literal["float32", "float16", "bfloat16"]


class Dtype(StrEnum):
    """Data type of the weights."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Quantization(StrEnum):
    """Quantization of the weights, for inference."""

    INT8 = "int8"
    NF4 = "nf4"


EMBEDDING_MODEL = Option(
    "MODEL", "Run, Hugging Face directory, hf:OWNER/NAME, or word vectors.", kind=str, is_required=True
)
AsJson = Annotated[bool, option("--json", "Print JSON.")]
AsCsv = Annotated[bool, option("--csv", "Print CSV.")]
Base = Annotated[Path | None, option("--base DIR", "Base model of an adapter, if it was moved.")]
DeviceName = Annotated[
    str | None, option("--device NAME", "cpu or cuda (default: a GPU if available).", complete_devices)
]
Quantize = Annotated[
    Quantization | None, option("--quantize", "Reduce the weights of linear layers to 8 or 4 bits (int8, nf4).")
]
TaskData = Annotated[Path | None, option("--data DIR", "Directory of task data (default: $PRETUNE_DATA).")]
TextColumn = Annotated[str | None, option("--text COL", "Text column.")]
PairColumn = Annotated[str | None, option("--pair COL", "Column of a second text.")]
LAYER = Option("--layer N", "Layer, 0 (embeddings) to depth; -1 is the last.")
DTYPE = Option("--dtype", "Data type of the weights.")
LENGTH = Option("--length N", "Maximum length in tokens; longer texts are truncated.")
PROMPT = Option("--prompt TEXT", "Prompt prepended to every text.")
