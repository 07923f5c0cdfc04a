"""Blanks filled by an encoder-decoder, which writes what is in them, of any length.

With sentinels (T5) the source has one in each blank, and the decoder says each and what belongs there:

    source   Paris is <X> of <Y>.        target   <X> the capital <Y> France <Z>

With a mask (BART) the decoder writes the whole text: it fills a blank until it comes to the token that follows it, or
to the end. Either way blanks are filled in turn: what comes before one, with the best answers so far, is given to the
decoder as said.
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
    """The `k` best answers for every blank, of at most so many pieces.

    A probability is that of all the texts found (twice as many as answers are asked for) with this answer.
    """
    check_can_generate(model)
    if tokenizer.sentinels:
        return _fill_sentinels(model, tokenizer, blanks, k, max_tokens)
    if "mask" in tokenizer.special:
        return _fill_masks(model, tokenizer, blanks, k, max_tokens)
    raise UsageError("this model's tokenizer has neither sentinels nor a mask token, so nothing could mark a blank")


def _fill_sentinels(
    model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, k: int, max_tokens: int
) -> list[list[FillPrediction]]:
    marks, asked = tokenizer.sentinels, blanks.count
    if asked >= len(marks):
        raise UsageError(f"{asked} blanks; this model has sentinels for {len(marks) - 1}")
    text = blanks.fill([tokenizer.get_token(mark) for mark in marks[:asked]])
    source = tokenizer.template.apply(tokenizer.encode(text)).ids.tolist()
    found = GenerationTokens.from_model(model)
    steered = replace(found, forced_bos=None, eos=(*found.eos, *marks), forced_eos=None)
    said, answers = list[int](), list[list[FillPrediction]]()
    for mark in marks[:asked]:
        said = [*said, mark]
        texts = _search_answers(model, source, steered, said, k, max_tokens + 1)
        answers.append(
            _merge_answers(tokenizer, ((one.tokens[:max_tokens], _compute_probability(one)) for one in texts), k)
        )
        said += answers[-1][0].tokens if answers[-1] else []
    return answers


def _fill_masks(
    model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, k: int, max_tokens: int
) -> list[list[FillPrediction]]:
    mask = tokenizer.special["mask"]
    source = tokenizer.template.apply(tokenizer.encode(blanks.fill([tokenizer.get_token(mask)] * blanks.count))).ids
    parts = _split_at_mask(source.tolist(), mask)
    if len(parts) != blanks.count + 1:
        raise UsageError("this tokenizer does not read its own mask token where it is spelled; it cannot be used here")
    found = GenerationTokens.from_model(model)
    said, answers = parts[0], []
    for following in parts[1:]:
        ends = (*found.eos, *following[:1])
        texts = _search_answers(
            model, source.tolist(), replace(found, forced_bos=None, eos=ends, forced_eos=None), said, k, max_tokens + 1
        )
        over = [one for one in texts if one.finish_reason == "end"] or texts
        answers.append(
            _merge_answers(tokenizer, ((one.tokens[:max_tokens], _compute_probability(one)) for one in over), k)
        )
        said = [*said, *(answers[-1][0].tokens if answers[-1] else []), *following]
    return answers


def _split_at_mask(tokens: list[int], mask: int) -> list[list[int]]:
    """Tokens between masks."""
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
    size = 2 * k
    how = GenerationConfig(
        max_new_tokens=max_new_tokens,
        min_new_tokens=1,
        search=BeamSearch(beams=size, length_penalty=0.0, early_stopping=True),
        returns=size,
    )
    return generate_tokens(
        model, [source], how, generation_tokens=generation_tokens, decoder_prompts=[list(decoder_prompt)]
    )[0]


def _compute_probability(generated: GeneratedTokens) -> float:
    return math.exp(generated.score or 0.0)


def _merge_answers(tokenizer: Tokenizer, pairs: Iterable[tuple[list[int], float]], k: int) -> list[FillPrediction]:
    """Answers by how likely they are, those that read alike taken together."""
    found: dict[str, FillPrediction] = {}
    for tokens, chance in pairs:
        word = tokenizer.decode(tokens, special=False).strip()
        if not word:
            continue
        before = found.get(word)
        found[word] = (
            FillPrediction(word, chance, tokens) if before is None else before._replace(probability=before[1] + chance)
        )
    return sorted(found.values(), key=lambda answer: -answer.probability)[:k]
