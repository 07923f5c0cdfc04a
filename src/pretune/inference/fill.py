"""Fill-mask (`pretune.fill`): predictions for the masks of a text."""

import os
from collections.abc import Sequence
from typing import overload

from torch import nn

from pretune.core.errors import UsageError
from pretune.inference.infill import infill
from pretune.inference.mask_positions import Blanks
from pretune.inference.text_model import eval_mode, get_language_model, get_tokenizer, load_model
from pretune.inference.unmask import FillPrediction, unmask

AnyModel = nn.Module | str | os.PathLike[str]
"""A model or its directory."""
MAX_INFILL_TOKENS = 8
"""Default limit of the tokens that an encoder-decoder generates for a mask."""


@overload
def fill(model: AnyModel, texts: str, *, k: int = 5, pieces: int | None = None) -> list[list[FillPrediction]]:
    """Fill one text: returns a list of predictions for each mask."""


@overload
def fill(
    model: AnyModel, texts: list[str], *, k: int = 5, pieces: int | None = None
) -> list[list[list[FillPrediction]]]:
    """Fill several texts: returns the same for each text."""


def fill(
    model: AnyModel, texts: str | list[str], *, k: int = 5, pieces: int | None = None
) -> list[list[FillPrediction]] | list[list[list[FillPrediction]]]:
    """Predict the `k` best fillers of each mask of a text, or of each text in a list.

    Returns `FillPrediction(word, probability, tokens)` values.

        pt.fill(model, "The movie was [MASK].")[0][0].word
        pt.fill("runs/books", "The movie was [MASK].")

    A mask is written as the model's mask token (or a sentinel: <extra_id_0>), or as [MASK], <mask> or ___ in a text
    without those. An encoder fills it with one token, or with whole words of up to `pieces` tokens; an encoder-decoder
    generates as many tokens as it needs, up to `pieces` (8).
    """
    if k < 1:
        raise UsageError(f"k must be >= 1, got {k}")
    if pieces is not None and pieces < 1:
        raise UsageError(f"pieces must be >= 1, got {pieces}")
    model = load_model(model)
    if not isinstance(texts, str):
        return [fill(model, text, k=k, pieces=pieces) for text in texts]
    language_model = get_language_model(model)
    if language_model.spec.shape == "decoder":
        raise UsageError(
            "a decoder cannot fill masks: it does not see the text after them; use `pretune generate` instead"
        )
    tokenizer = get_tokenizer(language_model)
    blanks = find_blanks(language_model, texts)
    with eval_mode(language_model):
        if language_model.spec.is_encoder_decoder:
            return infill(language_model, tokenizer, blanks, k=k, max_tokens=pieces or MAX_INFILL_TOKENS)
        return unmask(language_model, tokenizer, blanks, k=k, max_pieces=pieces or 1)


def find_blanks(model: nn.Module, text: str) -> Blanks:
    """Find the masks of a text, in the spelling of the model's tokenizer or a generic one."""
    tokenizer = get_tokenizer(model)
    mask, sentinels = tokenizer.special.get("mask"), tokenizer.sentinels
    if sentinels and get_language_model(model).spec.is_encoder_decoder:
        return Blanks.find(text, mask_tokens=[tokenizer.get_token(sentinel) for sentinel in sentinels])
    return Blanks.find(text, mask_tokens=None if mask is None else tokenizer.get_token(mask))


def insert_answers(blanks: Blanks, answers: Sequence[Sequence[FillPrediction]]) -> str:
    """Insert the best prediction into each mask."""
    return blanks.fill([options[0].word if options else "" for options in answers])
