"""Recipes: one word and a time give a model, from text to weights. Each shape has a file; choices come with reasons.

    pretune pretrain encoder --text books/ --budget 10m --out runs/mine

A recipe is a function of facts (the text, the device, the time) to a plan: settings of a run, each with the reason for
it. What a user sets with --set takes the place of a choice, and the choices after it follow.
"""

from typing import TYPE_CHECKING

from pretune.core.registry import Registry

if TYPE_CHECKING:
    from pretune.runs.options import PretrainOptions
    from pretune.runs.recipes.recipe import ShapeRecipe

RECIPES: Registry["ShapeRecipe"] = Registry(
    "recipe",
    {
        "encoder": "pretune.runs.recipes.encoder:encoder",
        "decoder": "pretune.runs.recipes.decoder:decoder",
        "encoder-decoder": "pretune.runs.recipes.encoder_decoder:encoder_decoder",
    },
)
"""Recipes by the name that takes the place of a family's."""


def is_recipe(options: "PretrainOptions") -> bool:
    """Return True if the options name a recipe instead of a model."""
    return options.model is not None and options.model in RECIPES
