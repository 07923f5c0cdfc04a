"""A decoder for text and minimal pairs: the layout of Qwen3 (Llama with norms of queries and keys), left to right."""

from collections.abc import Mapping

from pretune.runs.recipes.recipe import ShapeRecipe
from pretune.runs.recipes.rules import Extras, Regularization


def _choose_heads(shape: Mapping[str, int]) -> Extras:
    return {
        "model.kv_heads": (shape["heads"], "one for each query head"),
        "model.head_width": (shape["width"] // shape["heads"], "the width over the heads"),
        "model.tied": (True, "one table of the vocabulary"),
    }


decoder = ShapeRecipe(
    family="qwen3",
    reason="rotary positions, gated layers, and norms of queries and keys; transformers loads it",
    objective="causal",
    targets=1.0,
    tokenizer=("bpe", "endoftext"),
    ladder=(
        *[(64, 4), (128, 4), (128, 6), (192, 6), (256, 6), (256, 10), (320, 10), (384, 12), (512, 12), (640, 14)],
        *[(768, 16), (896, 18), (1024, 20)],
    ),
    hidden=8 / 3,
    length=256,
    regularization=Regularization(dropout=None),
    complete=_choose_heads,
)
"""Decoder in the layout of Qwen3."""
