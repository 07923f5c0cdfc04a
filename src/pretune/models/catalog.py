"""From a name to a model: `bert-base`, `t5v1.1-small`, `llama2-7b`, with settings changed."""

import inspect
from collections.abc import Mapping
from typing import Any, overload

import torch

from pretune.core import config
from pretune.core.config.read import format_value
from pretune.core.config.specs import parse_annotation
from pretune.core.config.text import parse_value
from pretune.core.errors import UsageError, suggest
from pretune.models.bidirectional_lm import BidirectionalLM, TwoWay
from pretune.models.families import FAMILIES
from pretune.models.family import Family
from pretune.models.generator_discriminator import GeneratorDiscriminator, Pair
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.models.trained_model import AnyModel, AnySpec
from pretune.models.trained_model import build_any as build_any


def list_names() -> list[str]:
    """Every family with each of its sizes."""
    return [f"{family}-{size}" for family in FAMILIES for size in FAMILIES.get(family).sizes]


def parse_name(name: str) -> tuple[str, str]:
    """Family and size of a name `FAMILY[-SIZE]`; the family's usual size where none is given."""
    families = sorted((family for family in FAMILIES if name == family or name.startswith(family + "-")), key=len)
    if not families:
        raise UsageError(
            f"unknown model '{name}'{suggest(name, [*FAMILIES, *list_names()])} (`pretune list families` shows all)"
        )
    family = families[-1]
    size = FAMILIES.get(family).default if name == family else name[len(family) + 1 :]
    sizes = FAMILIES.get(family).sizes
    if size not in sizes:
        hint = suggest(size, sizes) or suggest(name, [other for other in FAMILIES if other != family])
        raise UsageError(f"{family} has no size '{size}'{hint} (sizes: {', '.join(sizes)})")
    return family, size


def resolve(name: str, settings: Mapping[str, Any] | None = None) -> Model:
    """The spec of a name. Settings are the recipe's (`width`, `depth`, `heads`, `vocab`, …) or paths in the tree.

    A leading `model.` is dropped. The recipe's settings come first, so what follows from them (a hidden width) does.
    """
    family, size = parse_name(name)
    given: dict[str, Any] = {}
    for path, value in (settings or {}).items():
        path = path.removeprefix("model.")
        if path in given:
            raise UsageError(f"'{path}' is set twice, with and without 'model.'; keep one")
        given[path] = value
    knobs = list_settings(FAMILIES.get(family))
    spec = FAMILIES.get(family).resolve_spec(
        size, **{path: _parse_setting(path, given[path], knobs[path]) for path in given if path in knobs}
    )
    rest = {path: value for path, value in given.items() if path not in knobs}
    paths = config.list_paths(spec)
    for path in rest:
        if path.split(".")[0] not in {known.split(".")[0] for known in paths}:
            raise UsageError(f"unknown setting '{path}'{suggest(path, [*knobs, *paths])}")
    return config.replace(spec, rest) if rest else spec


def list_settings(family: Family) -> dict[str, Any]:
    """The recipe's settings that are numbers or switches, with their annotations."""
    parameters = inspect.signature(family.build_spec, eval_str=True).parameters
    kinds = (int, float, bool, int | None)
    return {name: parameter.annotation for name, parameter in parameters.items() if parameter.annotation in kinds}


@overload
def build(name: str | Model, *, seed: int = ..., device: torch.device | str = ..., **settings: Any) -> LanguageModel:
    """Of one model."""


@overload
def build(name: Pair, *, seed: int = ..., device: torch.device | str = ..., **settings: Any) -> GeneratorDiscriminator:
    """Of a generator and a discriminator."""


@overload
def build(name: TwoWay, *, seed: int = ..., device: torch.device | str = ..., **settings: Any) -> BidirectionalLM:
    """Of two ways."""


def build(name: str | AnySpec, *, seed: int = 0, device: torch.device | str = "cpu", **settings: Any) -> AnyModel:
    """A new model with fresh weights: `build("gpt2-small", vocab=8192)`, or from a spec of any shape."""
    spec = resolve(name, settings) if isinstance(name, str) else config.replace(name, settings)
    return build_any(spec, seed=seed, device=device)


def _parse_setting(path: str, value: Any, annotation: Any) -> Any:
    """A value for one of the recipe's settings; text, as `--set` gives it, is parsed by the setting's type."""
    if isinstance(value, str):
        value = parse_value(annotation, value, path)
    allowed = parse_annotation(annotation)
    (kind,) = allowed.scalars
    if value is None and allowed.is_optional:
        return None
    # NOTE: bool is a subclass of int, so types are compared.
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise UsageError(f"{path}: expected {allowed}, found {format_value(value)}")
    if isinstance(value, int) and kind is int and value < 1:  # they all are sizes; some recipes take 0 for "not given"
        raise UsageError(f"{path} {value} must be at least 1")
    return value
