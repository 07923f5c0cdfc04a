"""The documented objectives and methods of families are those that run on tiny models."""

from typing import Any

import numpy as np
import pytest
import torch

from pretune.adaptation.teacher import attach_teacher, freeze_teacher
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.models import catalog
from pretune.models.families import FAMILIES
from pretune.models.model import build
from pretune.objectives.base import Objective
from pretune.objectives.distill import Distill
from pretune.runs.defaults import replace_heads
from tests.contracts.objective_cases import setting, together
from tests.contracts.tiny import tiny
from tests.docs import support

QUICK_FAMILIES = {"electra", "xlnet", "elmo", "gpt2", "ulmfit", "t5"}
"""A family of each shape, and of each row that lacks an objective."""
FAMILY_PARAMS = [
    pytest.param(family, marks=() if family in QUICK_FAMILIES else pytest.mark.slow) for family in FAMILIES
]


def compute_loss(family: str, name: str) -> float:
    """Loss of a tiny model of a family on a batch of an objective, trained as the family's paper trains it."""
    size = FAMILIES.get(family).default
    objective: Any = support.build_config(f"{family}-{size}", name, "teacher" if name == "distill" else None).objective
    base: Objective = objective.base if isinstance(objective, Distill) else objective
    kind = "words" if tiny(family).characters is not None else "wordpiece"
    spec = replace_heads(tiny(family), objective)
    shape = catalog.convert_to_shape(spec, objective.shapes).shape
    case = setting(base.name, shape, kind)
    spec = config.replace(spec, {"vocab": case.vocabulary.size})
    model: Any = catalog.build_any(catalog.convert_to_shape(spec, objective.shapes))
    if spec.characters is not None:
        model.assets.tokenizer = case.tokenizer
    if isinstance(objective, Distill):
        objective = attach_teacher(objective, model, freeze_teacher(build(model.spec, seed=9)), source="teacher")
    batch = together(case.corrupt(case.sequences([9, 7, 8, 6])), per_row=2)
    with torch.no_grad():
        return float(objective.loss(model, batch).mean())


@pytest.mark.parametrize("family", FAMILY_PARAMS)
def test_documented_objectives_train(family: str) -> None:
    default = FAMILIES.get(family).resolve_spec(FAMILIES.get(family).default)
    for name in support.list_objectives()[default.shape, family]:
        assert np.isfinite(compute_loss(family, name)), name


@pytest.mark.parametrize("name", ["electra-small", "deberta-v3-base"])
def test_a_student_of_another_objective_is_distilled(name: str) -> None:
    """Where the paper's objective cannot be distilled, the error names objectives that can be."""
    with pytest.raises(UsageError, match=r"'replaced_token'.*masked"):
        support.build_config(name, "distill", "teacher")
    objective = support.build_config(name, "masked", "teacher").objective
    assert isinstance(objective, Distill) and objective.base.name == "masked"


@pytest.mark.parametrize("name", ["prefix", "masked_next", "mixture"])
def test_recurrent_models_refuse_attention_to_later_tokens(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}'"):
        support.build_config("ulmfit-original", name)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text_to_text", [False, True])
def test_families_of_one_wiring_refuse_the_same_methods(family: str, text_to_text: bool) -> None:
    if text_to_text and tiny(family).decoder is None:
        pytest.skip("it does not generate text")
    limits = support.list_method_limits()
    documented = {
        name for name, (families, text_families) in limits.items() if family in families + text_families * text_to_text
    }
    assert {*support.list_refused_methods(family, text_to_text=text_to_text)} == documented
