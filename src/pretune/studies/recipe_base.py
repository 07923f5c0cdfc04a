"""Base of rows: the settings that a recipe chooses for a number of FLOPs, which rows then change.

    settings: {recipe: {shape: encoder, flops: 4e16}}

The plan is one for an H200, whatever the machine, so a study has the same models everywhere.
"""

import math

from pretune.core.errors import UsageError
from pretune.models import catalog
from pretune.models.devices import DEVICES
from pretune.runs.recipes import RECIPES
from pretune.runs.recipes.facts import BYTES_PER_TOKEN, DeviceFacts, Facts, TextFacts
from pretune.runs.recipes.plan import RecipePlan, SizeEstimate
from pretune.runs.recipes.recipe import ShapeRecipe, choose_tokenizer
from pretune.studies.inputs import StudyInputs
from pretune.studies.settings import RowSettings
from pretune.studies.spec import Setting, Settings, check_name

H200 = DeviceFacts(name="h200", device_type="cuda", flops=790e12, bandwidth=4e12, memory=DEVICES["h200"].memory)
"""Speed of an H200 as it is measured before a run."""
MISSING_BYTES = 250_000_000
"""Text of corpora that are not installed: about that of the scale gpu."""
TOKENIZER_BYTES = 20_000_000
"""Text that a tokenizer is trained on, as in runs of recipes."""
ROUNDS = 6
"""Attempts to find the time of a number of FLOPs: the size follows from the time, and the time from the size."""


class RecipeBases:
    """Settings of recipes by shape, FLOPs, corpora and model; each is planned once."""

    def __init__(self, inputs: StudyInputs, budget_flops: float | None) -> None:
        self.inputs, self.budget_flops = inputs, budget_flops
        self._settings: dict[tuple[str, float, tuple[str, ...], str | None], Settings] = {}

    def build(self, settings: RowSettings, model: str | None) -> Settings:
        """Return the settings of the recipe that the settings of a row name, for another model if it has one."""
        shape, flops = settings.get("recipe.shape"), settings.values.get("recipe.flops", self.budget_flops)
        if shape is None or flops is None:
            raise UsageError("a recipe needs a shape and FLOPs; set 'recipe: {shape: encoder, flops: 4e16}'")
        check_name("recipe.shape", shape, RECIPES.list_names(), "recipe")
        corpora = settings.get_corpora()
        key = (shape, float(flops), corpora, model)
        if key not in self._settings:
            size = self.inputs.sum_sizes(corpora) or MISSING_BYTES
            text = TextFacts(bytes=size, tokens=round(size / BYTES_PER_TOKEN))
            self._settings[key] = plan_settings(RECIPES.get(shape), text, float(flops), model)
        return self._settings[key]


def plan_settings(recipe: ShapeRecipe, text: TextFacts, flops: float, model: str | None = None) -> Settings:
    """Return the model, tokenizer, objective and training that a recipe chooses, as settings of a row.

    A model of another family has the width, depth, heads and hidden width, but not what is particular to the recipe's.
    """
    plan, size = plan_for_flops(recipe, text, flops)
    is_own = model is None or catalog.parse_name(model)[0] == recipe.family
    foreign_paths = () if is_own else recipe.complete(size.settings)
    values = {
        "model": recipe.family,
        "tokenizer.kind": choose_tokenizer(recipe.tokenizer[0], text)[0],
        "tokenizer.style": recipe.tokenizer[1],
        "tokenizer.vocab": size.vocab,
        "tokenizer.sample_bytes": TOKENIZER_BYTES,
        "pretrain.objective": recipe.objective,
        **{f"pretrain.{path}": value for path, value in plan.list_settings().items() if path not in foreign_paths},
    }
    return tuple(Setting(path=path, value=value) for path, value in values.items())


def plan_for_flops(recipe: ShapeRecipe, text: TextFacts, flops: float) -> tuple[RecipePlan, SizeEstimate]:
    """Return the plan of a recipe for the time that a number of FLOPs takes."""
    seconds = flops / H200.flops
    for _ in range(ROUNDS):
        plan, size = recipe.plan(Facts(text=text, device=H200, seconds=seconds), {})
        previous, seconds = seconds, flops * size.token_seconds / size.flops_per_token
        if math.isclose(previous, seconds):
            break
    return plan, size
