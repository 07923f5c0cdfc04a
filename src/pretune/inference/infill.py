"""Masks filled by an encoder-decoder, which generates fillers of any length.

With sentinels (T5) the source has one for each mask, and the decoder generates each sentinel and its filler:

    source   Paris is <X> of <Y>.        target   <X> the capital <Y> France <Z>

With a mask token (BART) the decoder generates the whole text: a filler ends at the token that follows the mask, or at
the end. In both cases masks are filled in order, and the text before a mask, with the best fillers so far, is the
decoder's prompt.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from pretune.core.errors import UsageError
from pretune.inference.decode import check_can_generate, generate_tokens
from pretune.inference.decoding_state import GeneratedTokens
from pretune.inference.generation_config import BeamSearch, GenerationConfig
from pretune.inference.generation_tokens import GenerationTokens
from pretune.inference.mask_positions import Blanks
from pretune.inference.unmask import FillPrediction
from pretune.models.model import LanguageModel
from pretune.text.tokenizer import Tokenizer


def infill(
    model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, *, k: int, max_tokens: int
) -> list[list[FillPrediction]]:
    """Return the `k` best fillers of every mask, of at most `max_tokens` tokens.

    The probability of a filler is the sum over all generated texts (2 k of them) with this filler.
    """
    check_can_generate(model)
    if tokenizer.sentinels:
        return _fill_sentinels(model, tokenizer, blanks, k, max_tokens)
    if "mask" in tokenizer.special:
        return _fill_masks(model, tokenizer, blanks, k, max_tokens)
    raise UsageError("cannot fill masks: the tokenizer has neither sentinels nor a mask token")


def _fill_sentinels(
    model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, k: int, max_tokens: int
) -> list[list[FillPrediction]]:
    sentinels, count = tokenizer.sentinels, blanks.count
    if count >= len(sentinels):
        raise UsageError(f"too many masks: {count}; the model has sentinels for {len(sentinels) - 1}")
    text = blanks.fill([tokenizer.get_token(sentinel) for sentinel in sentinels[:count]])
    source = tokenizer.template.apply(tokenizer.encode(text, add_special_tokens=False)).ids.tolist()
    default_tokens = GenerationTokens.from_model(model)
    generation_tokens = replace(default_tokens, forced_bos=None, eos=(*default_tokens.eos, *sentinels), forced_eos=None)
    decoder_prompt, answers = list[int](), list[list[FillPrediction]]()
    for sentinel in sentinels[:count]:
        decoder_prompt = [*decoder_prompt, sentinel]
        results = _search_answers(model, source, generation_tokens, decoder_prompt, k, max_tokens + 1)
        answers.append(
            _merge_answers(
                tokenizer,
                ((result.tokens[:max_tokens], _compute_probability(result)) for result in results),
                k,
            )
        )
        decoder_prompt += answers[-1][0].tokens if answers[-1] else []
    return answers


def _fill_masks(
    model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, k: int, max_tokens: int
) -> list[list[FillPrediction]]:
    mask = tokenizer.special["mask"]
    source = tokenizer.template.apply(
        tokenizer.encode(blanks.fill([tokenizer.get_token(mask)] * blanks.count), add_special_tokens=False)
    ).ids
    parts = _split_at_mask(source.tolist(), mask)
    if len(parts) != blanks.count + 1:
        raise UsageError("cannot fill masks: the tokenizer does not recognize its mask token in text")
    default_tokens = GenerationTokens.from_model(model)
    decoder_prompt, answers = parts[0], []
    for following in parts[1:]:
        eos = (*default_tokens.eos, *following[:1])
        results = _search_answers(
            model,
            source.tolist(),
            replace(default_tokens, forced_bos=None, eos=eos, forced_eos=None),
            decoder_prompt,
            k,
            max_tokens + 1,
        )
        complete = [result for result in results if result.finish_reason == "end"] or results
        answers.append(
            _merge_answers(
                tokenizer,
                ((result.tokens[:max_tokens], _compute_probability(result)) for result in complete),
                k,
            )
        )
        decoder_prompt = [*decoder_prompt, *(answers[-1][0].tokens if answers[-1] else []), *following]
    return answers


def _split_at_mask(tokens: list[int], mask: int) -> list[list[int]]:
    """Split tokens at masks."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == mask:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _search_answers(
    model: LanguageModel,
    source: list[int],
    generation_tokens: GenerationTokens,
    decoder_prompt: Iterable[int],
    k: int,
    max_new_tokens: int,
) -> list[GeneratedTokens]:
    beams = 2 * k
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        min_new_tokens=1,
        search=BeamSearch(beams=beams, length_penalty=0.0, early_stopping=True),
        returns=beams,
    )
    return generate_tokens(
        model, [source], config, generation_tokens=generation_tokens, decoder_prompts=[list(decoder_prompt)]
    )[0]


def _compute_probability(result: GeneratedTokens) -> float:
    return math.exp(result.score or 0.0)


def _merge_answers(tokenizer: Tokenizer, pairs: Iterable[tuple[list[int], float]], k: int) -> list[FillPrediction]:
    """Sort fillers by probability, merging those with the same text."""
    predictions: dict[str, FillPrediction] = {}
    for tokens, probability in pairs:
        word = tokenizer.decode(tokens, special=False).strip()
        if not word:
            continue
        previous = predictions.get(word)
        predictions[word] = (
            FillPrediction(word, probability, tokens)
            if previous is None
            else previous._replace(probability=previous[1] + probability)
        )
    return sorted(predictions.values(), key=lambda answer: -answer.probability)[:k]
