"""An encoder-decoder for text to text: the layout of T5 v1.1, trained on corrupted spans."""

from collections.abc import Mapping

from pretune.runs.recipes.recipe import ShapeRecipe
from pretune.runs.recipes.rules import Extras


def _choose_heads(shape: Mapping[str, int]) -> Extras:
    return {"model.head_width": (shape["width"] // shape["heads"], "the width over the heads")}


encoder_decoder = ShapeRecipe(
    family="t5v1.1",
    reason="relative positions and gated layers; transformers loads it",
    objective="span_corruption",
    targets=1.0,
    tokenizer=("unigram", "sentinels"),
    ladder=(
        (64, 2),
        (128, 2),
        (128, 4),
        (192, 4),
        (256, 4),
        (256, 6),
        (320, 6),
        (384, 8),
        (512, 8),
        (640, 10),
        (768, 12),
    ),
    hidden=2.0,
    length=256,
    complete=_choose_heads,
)
"""Encoder-decoder in the layout of T5 v1.1."""
