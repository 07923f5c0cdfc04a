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
from pretune.inference.decode import check, complete
from pretune.inference.decoding_state import Written
from pretune.inference.generation_config import Beam, Decoding
from pretune.inference.generation_tokens import Marks
from pretune.inference.mask_positions import Blanks
from pretune.inference.unmask import Answer
from pretune.models.model import LanguageModel
from pretune.text.tokenizer import Tokenizer


def infill(model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, *, k: int, most: int) -> list[list[Answer]]:
    """The `k` best answers for every blank, of at most so many pieces.

    A probability is that of all the texts found (twice as many as answers are asked for) with this answer.
    """
    check(model)
    if tokenizer.sentinels:
        return _sentinels(model, tokenizer, blanks, k, most)
    if "mask" in tokenizer.special:
        return _mask(model, tokenizer, blanks, k, most)
    raise UsageError("this model's tokenizer has neither sentinels nor a mask token, so nothing could mark a blank")


def _sentinels(model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, k: int, most: int) -> list[list[Answer]]:
    marks, asked = tokenizer.sentinels, blanks.count
    if asked >= len(marks):
        raise UsageError(f"{asked} blanks; this model has sentinels for {len(marks) - 1}")
    text = blanks.filled([tokenizer.token(mark) for mark in marks[:asked]])
    source = tokenizer.template.apply(tokenizer.encode(text)).ids.tolist()
    found = Marks.of(model)
    steered = replace(found, first=None, ends=(*found.ends, *marks), last=None)
    said, answers = list[int](), list[list[Answer]]()
    for mark in marks[:asked]:
        said = [*said, mark]
        texts = _search(model, source, steered, said, k, most + 1)
        answers.append(_best(tokenizer, ((one.tokens[:most], _chance(one)) for one in texts), k))
        said += answers[-1][0].tokens if answers[-1] else []
    return answers


def _mask(model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, k: int, most: int) -> list[list[Answer]]:
    mask = tokenizer.special["mask"]
    source = tokenizer.template.apply(tokenizer.encode(blanks.filled([tokenizer.token(mask)] * blanks.count))).ids
    parts = _parts(source.tolist(), mask)
    if len(parts) != blanks.count + 1:
        raise UsageError("this tokenizer does not read its own mask token where it is spelled; it cannot be used here")
    found = Marks.of(model)
    said, answers = parts[0], []
    for following in parts[1:]:
        ends = (*found.ends, *following[:1])
        texts = _search(model, source.tolist(), replace(found, first=None, ends=ends, last=None), said, k, most + 1)
        over = [one for one in texts if one.ended == "end"] or texts
        answers.append(_best(tokenizer, ((one.tokens[:most], _chance(one)) for one in over), k))
        said = [*said, *(answers[-1][0].tokens if answers[-1] else []), *following]
    return answers


def _parts(tokens: list[int], mask: int) -> list[list[int]]:
    """Tokens between masks."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == mask:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _search(
    model: LanguageModel, source: list[int], marks: Marks, said: Iterable[int], k: int, new: int
) -> list[Written]:
    size = 2 * k
    how = Decoding(
        max_new_tokens=new,
        min_new_tokens=1,
        search=Beam(beams=size, length_penalty=0.0, early_stopping=True),
        returns=size,
    )
    return complete(model, [source], how, marks=marks, begun=[list(said)])[0]


def _chance(one: Written) -> float:
    return math.exp(one.score or 0.0)


def _best(tokenizer: Tokenizer, pairs: Iterable[tuple[list[int], float]], k: int) -> list[Answer]:
    """Answers by how likely they are, those that read alike taken together."""
    found: dict[str, Answer] = {}
    for tokens, chance in pairs:
        word = tokenizer.decode(tokens, special=False).strip()
        if not word:
            continue
        before = found.get(word)
        found[word] = (
            Answer(word, chance, tokens) if before is None else before._replace(probability=before[1] + chance)
        )
    return sorted(found.values(), key=lambda answer: -answer.probability)[:k]
