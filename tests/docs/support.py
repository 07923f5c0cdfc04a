"""Support matrices of the documentation: the objectives and methods that the code accepts for each family.

Nothing here is a list: an objective counts if `build_paper_config` accepts it for the family, a method if
`build_adapted_model` accepts it for a tiny model. Families of one wiring are tried once; a slow test tries all.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from unittest import mock

import torch

from pretune.adaptation import METHOD_PRESETS, METHODS
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.models.catalog import convert_to_shape, parse_name
from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel, build
from pretune.models.spec import Model
from pretune.objectives import OBJECTIVES
from pretune.runs.config import PretrainConfig
from pretune.runs.defaults import build_paper_config
from pretune.runs.finetune import adapted_model
from pretune.runs.options import PretrainOptions
from pretune.runs.training_data import DataFacts
from pretune.tasks import TASKS
from pretune.text.tokenizer import Tokenizer
from pretune.training.distributed import Ranks
from tests.contracts.tiny import tiny
from tests.runs.configs import build_finetune_config
from tests.text.tokenizers import trained

ALL_METHODS = (*METHODS, *METHOD_PRESETS)
DATA = DataFacts("data", 10**6, 1)
TASK = "sst2"


def get_tokenizer(spec: Model) -> Tokenizer:
    return trained("words", "plain") if spec.characters is not None else trained("wordpiece", "cls-sep")


def build_config(name: str, objective: str, teacher: str | None = None) -> PretrainConfig:
    """The config of `pretune pretrain NAME --objective OBJECTIVE`, with the shape checked as a run does."""
    options = PretrainOptions(model=name, data="data", objective=objective, teacher=teacher, steps=1)
    family, size = parse_name(name)
    tokenizer = get_tokenizer(FAMILIES.get(family).resolve_spec(size))
    settings = build_paper_config(options.list_settings(), DATA, tokenizer, "cpu", {})
    convert_to_shape(settings.model, settings.objective.shapes)
    return settings


def accepts_objective(name: str, objective: str) -> bool:
    try:
        build_config(name, objective, "teacher" if objective == "distill" else None)
    except UsageError:
        return False
    return True


@cache
def list_objectives() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the objectives that all sizes of a family accept, by shape and family."""
    sizes: dict[tuple[str, str], dict[str, str]] = {}
    for family in FAMILIES:
        entry = FAMILIES.get(family)
        for size in entry.sizes:
            training = entry.get_training(size)
            assert training is not None
            names = sizes.setdefault((entry.resolve_spec(size).shape, family), {})
            names.setdefault(training.objective["kind"], f"{family}-{size}")  # sizes differ in their paper's objective
    return {
        key: tuple(name for name in OBJECTIVES if all(accepts_objective(size, name) for size in names.values()))
        for key, names in sizes.items()
    }


@dataclass(frozen=True)
class Wiring:
    """The properties of a model that decide about methods."""

    shape: str
    is_recurrent: bool
    has_shared_layers: bool
    has_free_head: bool  # a vocabulary head of its own, which `frozen` can train


def describe_wiring(family: str) -> Wiring:
    spec = tiny(family)
    return Wiring(
        spec.shape,
        spec.is_recurrent,
        spec.last_stack.share is not None or spec.shared,
        spec.head is not None and not spec.head.tied,
    )


def build_base(family: str) -> LanguageModel:
    spec = tiny(family)
    tokenizer = get_tokenizer(spec)
    model = build(config.replace(spec, {"vocab": tokenizer.vocab}))
    model.assets.tokenizer = tokenizer
    return model


def list_refused_methods(family: str, *, text_to_text: bool) -> list[str]:
    """Return the methods that `pretune finetune` refuses for a tiny model of a family, on a classification."""
    model, refused = build_base(family), []
    for method in ALL_METHODS:
        overrides = {"tune.text_to_text": text_to_text} | ({"method.block": 16} if method == "qlora" else {})
        try:
            tuning = build_finetune_config("base", method=method, task=TASK, base_spec=model.spec, overrides=overrides)
            loaded_model = copy.deepcopy(model, {id(model.tokenizer): model.tokenizer})
            with mock.patch.object(adapted_model.checkpoint, "load", return_value=loaded_model):
                adapted_model.build_adapted_model(tuning, TASKS.get(TASK), Ranks(torch.device("cpu")))
        except UsageError:
            refused.append(method)
    return refused


def group_by_wiring(families: Iterable[str] = FAMILIES) -> dict[Wiring, list[str]]:
    groups: dict[Wiring, list[str]] = {}
    for family in families:
        groups.setdefault(describe_wiring(family), []).append(family)
    return groups


@cache
def list_method_limits() -> dict[str, tuple[list[str], list[str]]]:
    """Return the families that refuse a method: with a task head, and only where the answer is generated as text."""
    limits: dict[str, tuple[list[str], list[str]]] = {method: ([], []) for method in ALL_METHODS}
    for families in group_by_wiring().values():
        refused = list_refused_methods(families[0], text_to_text=False)
        for method in refused:
            limits[method][0].extend(families)
        if tiny(families[0]).decoder is not None:
            for method in list_refused_methods(families[0], text_to_text=True):
                if method not in refused:
                    limits[method][1].extend(families)
    return {method: families for method, families in limits.items() if any(families)}
