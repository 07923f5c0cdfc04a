"""`pretune.fill`: what a model would put into the blanks of a text."""

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
"""A model, or the directory of one."""
MAX_INFILL_TOKENS = 8
"""Pieces that an encoder-decoder may write into a blank, unless asked otherwise."""


@overload
def fill(model: AnyModel, texts: str, *, k: int = 5, pieces: int | None = None) -> list[list[FillPrediction]]:
    """One text: a list of answers for each blank."""


@overload
def fill(
    model: AnyModel, texts: list[str], *, k: int = 5, pieces: int | None = None
) -> list[list[list[FillPrediction]]]:
    """Several texts: a list of those for each."""


def fill(
    model: AnyModel, texts: str | list[str], *, k: int = 5, pieces: int | None = None
) -> list[list[FillPrediction]] | list[list[list[FillPrediction]]]:
    """For each blank of a text the `k` best answers: `FillPrediction(word, probability, tokens)`; for several texts a list.

        pt.fill(model, "The movie was [MASK].")[0][0].word
        pt.fill("runs/books", "The movie was [MASK].")

    A blank is written as the model's own mask token (or a sentinel: <extra_id_0>), or as [MASK], <mask> or ___ in any
    text that has none of those.
    An encoder fills it with one piece of its vocabulary, or with whole words of up to `pieces`; an encoder-decoder
    writes as many as it needs, up to `pieces` (8).
    """
    if k < 1:
        raise UsageError(f"{k} answers; at least 1 has to be asked for")
    if pieces is not None and pieces < 1:
        raise UsageError(f"words of up to {pieces} pieces; at least 1 is needed")
    model = load_model(model)
    if not isinstance(texts, str):
        return [fill(model, text, k=k, pieces=pieces) for text in texts]
    found = get_language_model(model)
    if found.spec.shape == "decoder":
        raise UsageError(
            "a decoder does not fill blanks: it cannot see what comes after them; let it go on with `pretune generate`"
        )
    tokenizer = get_tokenizer(found)
    blanks = find_blanks(found, texts)
    with eval_mode(found):
        if found.spec.is_encoder_decoder:
            return infill(found, tokenizer, blanks, k=k, max_tokens=pieces or MAX_INFILL_TOKENS)
        return unmask(found, tokenizer, blanks, k=k, max_pieces=pieces or 1)


def find_blanks(model: nn.Module, text: str) -> Blanks:
    """The blanks of a text, as a model's tokenizer may spell them."""
    tokenizer = get_tokenizer(model)
    mask, sentinels = tokenizer.special.get("mask"), tokenizer.sentinels
    if sentinels and get_language_model(model).spec.is_encoder_decoder:
        return Blanks.find(text, mask_tokens=[tokenizer.get_token(one) for one in sentinels])
    return Blanks.find(text, mask_tokens=None if mask is None else tokenizer.get_token(mask))


def insert_answers(blanks: Blanks, answers: Sequence[Sequence[FillPrediction]]) -> str:
    """A text with the best answer in each blank."""
    return blanks.fill([options[0].word if options else "" for options in answers])
