"""Options of verbs: one frozen value per verb, from which its command line, its settings and its checks are derived.

    @option_set
    class TrainOptions(Options):
        model: str | None = option("MODEL", "Model to train.")
        steps: int | None = option("--steps N", "Training steps.", sets="train.steps")

    TrainOptions(model="bert-mini", steps=100).list_settings()     # {'train.steps': 100}

The fields are the arguments of the public function of the verb.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar, dataclass_transform

from pretune.core.errors import UsageError

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


def setting(path: str) -> Any:
    """Return a field that sets a path of the config, without an option on the command line."""
    return option("", "", sets=path)


@dataclass_transform(frozen_default=True, kw_only_default=True)
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
        values = {field.name: (getattr(self, field.name), field.default) for field in fields}
        return {name: value for name, (value, default) in values.items() if value is not None and value != default}

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


def require_out(out: StrPath | None, noun: str = "run") -> StrPath:
    """Return the output directory of a run or a study, which only a dry run lacks."""
    if out is None:
        raise UsageError(f"missing option '--out': the output directory of the {noun}")
    return out
