"""Specs and modules of any shape: a single model, or two that are trained together."""

from collections.abc import Sequence

import torch

from pretune.core.errors import UsageError
from pretune.models.bidirectional_lm import BidirectionalLM, TwoWay, build_bidirectional_lm, make_two_way
from pretune.models.families import FAMILIES
from pretune.models.generator_discriminator import GeneratorDiscriminator, Pair, add_generator, build_pair
from pretune.models.model import LanguageModel
from pretune.models.model import build as build_model
from pretune.models.spec import Model

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
