"""Models by name (`bert-base`, `t5v1.1-small`, `llama2-7b`), with settings overridden."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import torch

from pretune.core import config
from pretune.core.config.edit import parse_value
from pretune.core.config.read import format_value
from pretune.core.config.specs import parse_annotation
from pretune.core.errors import UsageError, suggest
from pretune.models.bidirectional_lm import BidirectionalLM, TwoWay, build_bidirectional_lm, make_two_way
from pretune.models.families import FAMILIES
from pretune.models.families.shared import Family
from pretune.models.generator_discriminator import GeneratorDiscriminator, Pair, add_generator, build_pair
from pretune.models.model import LanguageModel
from pretune.models.model import build as build_model
from pretune.models.spec import Model, Special

AnySpec = Model | Pair | TwoWay
AnyModel = LanguageModel | GeneratorDiscriminator | BidirectionalLM


def convert_to_shape(spec: Model, shapes: Sequence[str]) -> AnySpec:
    """Return the spec in one of `shapes`: unchanged, or with the second model that the shape needs.

    >>> from pretune.models.catalog import resolve
    >>> convert_to_shape(resolve("gpt2-small"), ["two-way"]).shape
    'two-way'
    """
    if spec.shape in shapes:
        return spec
    if spec.shape == "encoder" and "generator-discriminator" in shapes:
        family = FAMILIES.get(spec.family) if spec.family in FAMILIES else None
        return (
            family.build_pretraining_spec(spec)
            if family is not None and family.build_pretraining_spec
            else add_generator(spec)
        )
    if spec.shape == "decoder" and "two-way" in shapes:
        return make_two_way(spec)
    raise UsageError(
        f"the objective needs a model of shape {' or '.join(shapes)}, but '{spec.family}' has shape "
        f"'{spec.shape}'; choose another objective or family (`pretune list objectives`)"
    )


def list_models(spec: AnySpec) -> tuple[Model, ...]:
    """Return the models that every token passes through in training, for cost estimates."""
    if isinstance(spec, Pair):
        return spec.generator, spec.discriminator
    return (spec.forwards, spec.backward_spec) if isinstance(spec, TwoWay) else (spec,)


def build_any(spec: AnySpec, *, seed: int = 0, device: torch.device | str = "cpu") -> AnyModel:
    """Build a randomly initialized model of any shape."""
    if isinstance(spec, Pair):
        return build_pair(spec, seed=seed, device=device)
    if isinstance(spec, TwoWay):
        return build_bidirectional_lm(spec, seed=seed, device=device)
    return build_model(spec, seed=seed, device=device)


def list_names() -> list[str]:
    """Return all names `FAMILY-SIZE`."""
    return [f"{family}-{size}" for family in FAMILIES for size in FAMILIES.get(family).sizes]


def parse_name(name: str) -> tuple[str, str]:
    """Split a name `FAMILY[-SIZE]` into family and size; without a size, the family's default."""
    families = sorted((family for family in FAMILIES if name == family or name.startswith(family + "-")), key=len)
    if not families:
        raise UsageError(
            f"unknown model '{name}'{suggest(name, [*FAMILIES, *list_names()])} (`pretune list families` shows all)"
        )
    family = families[-1]
    size = FAMILIES.get(family).default if name == family else name[len(family) + 1 :]
    sizes = FAMILIES.get(family).sizes
    if size not in sizes:
        hint = suggest(size, sizes) or suggest(name, [candidate for candidate in FAMILIES if candidate != family])
        raise UsageError(f"{family} has no size '{size}'{hint} (sizes: {', '.join(sizes)})")
    return family, size


def resolve(name: str, settings: Mapping[str, object] | None = None) -> Model:
    """Return the spec of a name, with settings overridden.

    `settings` maps arguments of the family's `build_spec` (`width`, `depth`, `heads`, `vocab`, …) or paths in the spec
    to values; a leading `model.` is dropped. Arguments of `build_spec` are applied first, so that values derived from
    them (such as the hidden width) follow. Special tokens of the published vocabulary that a smaller `vocab` does not
    have are dropped.
    """
    family, size = parse_name(name)
    values: dict[str, object] = {}
    for path, value in (settings or {}).items():
        path = path.removeprefix("model.")
        if path in values:
            raise UsageError(f"'{path}' is set twice, with and without 'model.'; remove one")
        values[path] = value
    knobs = list_settings(FAMILIES.get(family))
    spec = FAMILIES.get(family).resolve_spec(
        size, **{path: _parse_setting(path, values[path], knobs[path]) for path in values if path in knobs}
    )
    if "vocab" in values:
        spec = _drop_special_tokens(spec, spec.vocab)
    rest = {path: value for path, value in values.items() if path not in knobs}
    paths = config.list_paths(spec)
    for path in rest:
        if path.split(".")[0] not in {choice.split(".")[0] for choice in paths}:
            raise UsageError(f"unknown setting '{path}'{suggest(path, [*knobs, *paths])}")
    return config.replace(spec, rest) if rest else spec


def list_settings(family: Family) -> dict[str, object]:
    """Return the numeric and boolean arguments of a family's `build_spec`, with their annotations."""
    parameters = inspect.signature(family.build_spec, eval_str=True).parameters
    kinds = (int, float, bool, int | None)
    return {name: parameter.annotation for name, parameter in parameters.items() if parameter.annotation in kinds}


@overload
def build(name: str | Model, *, seed: int = ..., device: torch.device | str = ..., **settings: object) -> LanguageModel:
    """Build a single model."""


@overload
def build(
    name: Pair, *, seed: int = ..., device: torch.device | str = ..., **settings: object
) -> GeneratorDiscriminator:
    """Build a generator and a discriminator."""


@overload
def build(name: TwoWay, *, seed: int = ..., device: torch.device | str = ..., **settings: object) -> BidirectionalLM:
    """Build a bidirectional language model."""


def build(name: str | AnySpec, *, seed: int = 0, device: torch.device | str = "cpu", **settings: object) -> AnyModel:
    """Build a randomly initialized model from a name (`build("gpt2-small", vocab=8192)`) or a spec."""
    if isinstance(name, str):
        return build_any(resolve(name, settings), seed=seed, device=device)
    vocab = settings.get("vocab")
    if isinstance(name, Model) and isinstance(vocab, int):
        name = _drop_special_tokens(name, vocab)
    return build_any(config.replace(name, settings), seed=seed, device=device)


def _drop_special_tokens(spec: Model, vocab: int) -> Model:
    """Return the spec without special tokens that do not exist in a vocabulary of this size."""
    pad, bos, start = (
        None if token is None or token >= vocab else token
        for token in (spec.special.pad, spec.special.bos, spec.special.start)
    )
    eos = tuple(token for token in spec.special.eos if token < vocab)
    return replace(spec, special=Special(pad=pad, bos=bos, eos=eos, start=start))


def _parse_setting(path: str, value: Any, annotation: Any) -> Any:
    """Check the value of a setting against its type; parse text, as `--set` passes it."""
    if isinstance(value, str):
        value = parse_value(annotation, value, path)
    annotation_type = parse_annotation(annotation)
    (kind,) = annotation_type.scalars
    if value is None and annotation_type.is_optional:
        return None
    # NOTE: bool is a subclass of int, so types are compared.
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise UsageError(f"{path} must be {annotation_type}, got {format_value(value)}")
    if isinstance(value, int) and kind is int and value < 1:  # all are sizes; some families read 0 as unset
        raise UsageError(f"{path} must be at least 1, got {value}")
    return value
