"""From a name to a model: `bert-base`, `t5v1.1-small`, `llama2-7b`, with settings changed."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from pretune.core import config
from pretune.core.errors import UsageError, nearest
from pretune.models import model
from pretune.models.families import FAMILIES
from pretune.models.family import Family
from pretune.models.model import LanguageModel
from pretune.models.spec import Model


def names() -> list[str]:
    """Every family with each of its sizes."""
    return [f"{family}-{size}" for family in FAMILIES for size in FAMILIES.get(family).sizes]


def find(name: str) -> tuple[str, str]:
    """Family and size of a name `FAMILY[-SIZE]`; the family's usual size where none is given."""
    families = sorted((family for family in FAMILIES if name == family or name.startswith(family + "-")), key=len)
    if not families:
        raise UsageError(f"unknown model '{name}'{nearest(name, [*FAMILIES, *names()])}; see 'pretune list families'")
    family = families[-1]
    size = name[len(family) + 1 :] or FAMILIES.get(family).default
    sizes = FAMILIES.get(family).sizes
    if size not in sizes:
        raise UsageError(f"{family} has no size '{size}'{nearest(size, sizes)}; sizes: {', '.join(sizes)}")
    return family, size


def resolve(name: str, settings: Mapping[str, Any] | None = None) -> Model:
    """The spec of a name. Settings are the recipe's (`width`, `depth`, `heads`, `vocab`, …) or paths in the tree.

    A leading `model.` is dropped. The recipe's settings come first, so what follows from them (a hidden width) does.
    """
    family, size = find(name)
    given = {path.removeprefix("model."): value for path, value in (settings or {}).items()}
    knobs = knobs_of(FAMILIES.get(family))
    taken = {path: _number(path, given[path], knobs[path]) for path in given if path in knobs}
    spec = FAMILIES.get(family).spec(size, **taken)
    rest = {path: value for path, value in given.items() if path not in knobs}
    for path in rest:
        if path.split(".")[0] not in {field for field in config.paths(spec) for field in [field.split(".")[0]]}:
            raise UsageError(f"unknown setting '{path}'{nearest(path, [*knobs, *config.paths(spec)])}")
    return config.replace(spec, rest) if rest else spec


def knobs_of(family: Family) -> dict[str, type]:
    """The recipe's settings that are numbers or switches, with their types."""
    kinds = {"int": int, "float": float, "bool": bool, "int | None": int}
    found = {}
    for name, parameter in inspect.signature(family.recipe).parameters.items():
        written = parameter.annotation if isinstance(parameter.annotation, str) else None
        written = written or getattr(parameter.annotation, "__name__", str(parameter.annotation))
        if written in kinds:
            found[name] = kinds[written]
    return found


def build(name: str | Model, *, seed: int = 0, device: torch.device | str = "cpu", **settings: Any) -> LanguageModel:
    """A new model with fresh weights: `build("bert-mini", vocab=8192)`, or from a spec."""
    spec = name if isinstance(name, Model) else resolve(name, settings)
    return model.build(spec, seed=seed, device=device)


def _number(path: str, value: Any, kind: type) -> Any:
    if isinstance(value, str):
        try:
            number = float(value.replace("_", ""))
        except ValueError:
            if kind is bool and value.lower() in ("true", "false"):
                return value.lower() == "true"
            raise UsageError(f"{path} = '{value}' is not a number") from None
        value = int(number) if kind is int and number.is_integer() else number
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, (int, float) if kind is float else kind):
        raise UsageError(f"{path} = {value!r} must be a {kind.__name__}")
    return value
