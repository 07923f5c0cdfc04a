"""Fill-mask (`pretune.fill`): predictions for the masks of a text.

An encoder fills a mask with a token or a word (`unmask`). An encoder-decoder generates fillers of any length. With
sentinels (T5) the source has one for each mask, and the decoder generates each sentinel and its filler:

    source   Paris is <X> of <Y>.        target   <X> the capital <Y> France <Z>

With a mask token (BART) the decoder generates the whole text: a filler ends at the token that follows the mask, or at
the end. In both cases masks are filled in order, and the text before a mask, with the best fillers so far, is the
decoder's prompt.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import overload

from torch import nn

from pretune.core.errors import UsageError
from pretune.inference.decode import check_can_generate, generate_tokens
from pretune.inference.decoding_state import GeneratedTokens
from pretune.inference.generation_config import BeamSearch, GenerationConfig, GenerationTokens
from pretune.inference.text_model import eval_mode, get_language_model, get_tokenizer, load_model
from pretune.inference.unmask import Blanks, FillPrediction, count_word_sequences, unmask
from pretune.models.model import LanguageModel
from pretune.text.tokenizer import Tokenizer

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
    language_model = get_language_model(model)
    if language_model.spec.shape == "decoder":
        raise UsageError(
            "a decoder cannot fill masks: it does not see the text after them; use `pretune generate` instead"
        )
    tokenizer = get_tokenizer(language_model)
    blanks = [find_blanks(language_model, text) for text in ([texts] if isinstance(texts, str) else texts)]
    with eval_mode(language_model):
        if language_model.spec.is_encoder_decoder:
            max_tokens = pieces or MAX_INFILL_TOKENS
            answers = [infill(language_model, tokenizer, text, k=k, max_tokens=max_tokens) for text in blanks]
        else:
            answers = unmask(language_model, tokenizer, blanks, k=k, max_pieces=pieces or 1)
    return answers[0] if isinstance(texts, str) else answers


def find_blanks(model: nn.Module, text: str) -> Blanks:
    """Find the masks of a text, in the spelling of the model's tokenizer or a generic one."""
    tokenizer = get_tokenizer(model)
    mask, sentinels = tokenizer.special.get("mask"), tokenizer.sentinels
    if sentinels and get_language_model(model).spec.is_encoder_decoder:
        return Blanks.find(text, mask_tokens=[tokenizer.get_token(sentinel) for sentinel in sentinels])
    return Blanks.find(text, mask_tokens=None if mask is None else tokenizer.get_token(mask))


def count_fill_sequences(model: nn.Module, masks: int, *, k: int, pieces: int | None) -> int:
    """Return the maximum number of sequences in the forward passes that fill a text; of a decoder, in all its steps."""
    if get_language_model(model).spec.is_encoder_decoder:
        return masks * 2 * k * ((pieces or MAX_INFILL_TOKENS) + 1)
    return count_word_sequences(masks, k=k, max_pieces=pieces or 1)


def insert_answers(blanks: Blanks, answers: Sequence[Sequence[FillPrediction]]) -> str:
    """Insert the best prediction into each mask."""
    return blanks.fill([options[0].word if options else "" for options in answers])


def infill(
    model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, *, k: int, max_tokens: int
) -> list[list[FillPrediction]]:
    """Return the `k` best fillers of every mask, of at most `max_tokens` tokens.

    The probability of a filler is the sum over all generated texts (2 k of them) with this filler.
    """
    check_can_generate(model)
    sentinels, count = tokenizer.sentinels, blanks.count
    if not sentinels and "mask" not in tokenizer.special:
        raise UsageError("cannot fill masks: the tokenizer has neither sentinels nor a mask token")
    if sentinels and count >= len(sentinels):
        raise UsageError(f"too many masks: {count}; the model has sentinels for {len(sentinels) - 1}")
    masks = [*sentinels[:count]] if sentinels else [tokenizer.special["mask"]] * count
    source = tokenizer.encode(blanks.fill([tokenizer.get_token(mask) for mask in masks]))
    # Tokens of the decoder before each filler, and the tokens that end it.
    leads, ends = [[mask] for mask in masks], [sentinels] * count
    if not sentinels:
        edges = [-1, *(i for i, token in enumerate(source) if token == masks[0]), len(source)]
        parts = [source[start + 1 : stop] for start, stop in pairwise(edges)]
        if len(parts) != count + 1:
            raise UsageError("cannot fill masks: the tokenizer does not recognize its mask token in text")
        leads, ends = parts[:-1], [tuple(part[:1]) for part in parts[1:]]
    default_tokens = GenerationTokens.from_model(model)
    beams = BeamSearch(beams=2 * k, length_penalty=0.0, early_stopping=True)
    config = GenerationConfig(max_new_tokens=max_tokens + 1, min_new_tokens=1, search=beams, returns=2 * k)
    decoder_prompt, answers = list[int](), list[list[FillPrediction]]()
    for lead, end in zip(leads, ends, strict=True):
        decoder_prompt = [*decoder_prompt, *lead]
        generation_tokens = replace(default_tokens, forced_bos=None, eos=(*default_tokens.eos, *end), forced_eos=None)
        (results,) = generate_tokens(
            model, [source], config, generation_tokens=generation_tokens, decoder_prompts=[decoder_prompt]
        )
        if not sentinels:
            results = [result for result in results if result.finish_reason == "end"] or results
        answers.append(_merge_fillers(tokenizer, results, max_tokens)[:k])
        decoder_prompt += answers[-1][0].tokens if answers[-1] else []
    return answers


def _merge_fillers(tokenizer: Tokenizer, results: Sequence[GeneratedTokens], max_tokens: int) -> list[FillPrediction]:
    """Sort fillers by probability, merging those with the same text."""
    predictions: dict[str, FillPrediction] = {}
    for result in results:
        tokens, probability = result.tokens[:max_tokens], math.exp(result.score or 0.0)
        word = tokenizer.decode(tokens, special=False).strip()
        if word in predictions:
            probability += predictions[word].probability
            predictions[word] = predictions[word]._replace(probability=probability)
        elif word:
            predictions[word] = FillPrediction(word, probability, tokens)
    return sorted(predictions.values(), key=lambda answer: -answer.probability)
