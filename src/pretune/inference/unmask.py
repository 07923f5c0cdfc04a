"""Blanks filled by an encoder: one piece from what it says at the mask, or words of several pieces, one after another.

A word of m pieces is looked for with m masks in the blank: the first is filled, then the second beside it, and so on,
with the best few kept at each step. Its probability is the product of what each piece had when it was chosen; words of
different lengths are compared by the mean of the logarithms, for each further piece is one more guess.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE, Batch
from pretune.data.batch_shape import Shape
from pretune.data.layout import lay_out
from pretune.data.ragged import bounds
from pretune.data.sequences import Sequences
from pretune.data.virtual_tokens import reserve
from pretune.inference.finite_check import check_outputs
from pretune.inference.mask_positions import Blanks
from pretune.inference.prefill import rows_of, slots_of
from pretune.inference.word_starts import pieces_of
from pretune.models.model import LanguageModel
from pretune.text.templates import Laid
from pretune.text.tokenizer import Tokenizer

TOGETHER = 64
"""So many sequences are read at a time."""
SPARE = 4
"""Times as many unfinished words as answers are kept while pieces are added."""


class Answer(NamedTuple):
    """What may stand in a blank, how likely the model finds it there, and its tokens."""

    word: str
    probability: float
    tokens: list[int]


class _Partial(NamedTuple):
    tokens: list[int]
    logs: float


def unmask(model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, *, k: int, most: int) -> list[list[Answer]]:
    """The `k` best answers for every blank, of at most so many pieces; other blanks stay masked."""
    mask = tokenizer.special.get("mask")
    if mask is None:
        raise UsageError("this model's tokenizer has no mask token, so there is nothing that could mark a blank")
    if model.head is None:
        raise UsageError(
            "this model has no vocabulary head, so it cannot say what is in a blank; load one that has (beside a "
            "discriminator it is the one in its folder 'generator')"
        )
    text = _encoded(tokenizer, blanks, mask, model)
    if most == 1:
        found = _logs(model, [(text, _places(text, mask))])[0]
        return [_single(tokenizer, row, k) for row in found]
    return [_word(model, tokenizer, blanks, text, blank, k=k, most=most) for blank in range(blanks.count)]


def _encoded(tokenizer: Tokenizer, blanks: Blanks, mask: int, model: LanguageModel) -> Laid:
    """The text as the model reads it, a mask in each blank."""
    tokens = tokenizer.encode(blanks.filled([tokenizer.token(mask)] * blanks.count))
    laid = tokenizer.template.apply(tokens)
    if len(_places(laid, mask)) != blanks.count:
        raise UsageError("this tokenizer does not read its own mask token where it is spelled; it cannot be used here")
    longest = model.spec.longest
    if longest is not None and len(laid.ids) + slots_of(model) > longest:
        raise UsageError(f"a text of {len(laid.ids)} tokens; this model's positions end at {longest}; shorten it")
    return laid


def _places(text: Laid, mask: int) -> list[int]:
    return np.flatnonzero(text.ids == mask).tolist()


def _single(tokenizer: Tokenizer, logs: Tensor, k: int) -> list[Answer]:
    """One piece: the likeliest, whatever it is a piece of."""
    ordinary = pieces_of(tokenizer, logs.shape[0]).ordinary
    best, index = logs.masked_fill(~ordinary, float("-inf")).topk(min(k, int(ordinary.sum())))
    return [
        Answer(tokenizer.decode([token]).strip(), log, [token])
        for token, log in zip(index.tolist(), best.exp().tolist(), strict=True)
    ]


def _word(
    model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, text: Laid, blank: int, *, k: int, most: int
) -> list[Answer]:
    """Whole words of one piece, of two, …: the best of all."""
    pieces = pieces_of(tokenizer, model.spec.vocab)
    opening = blank == 0 and not blanks.parts[0]
    first = pieces.opens if opening else pieces.begins if blanks.spaced(blank) else pieces.ordinary
    found: dict[str, tuple[float, Answer]] = {}
    for count in range(1, most + 1):
        kept = [_Partial([], 0.0)]
        for step in range(count):
            allowed = first if step == 0 else pieces.continues
            kept = _grown(model, text, tokenizer.special["mask"], blank, kept, count, allowed, k * SPARE)
        for one in kept:
            word = tokenizer.decode(one.tokens).strip()
            mean = one.logs / count
            if word and (word not in found or mean > found[word][0]):
                found[word] = mean, Answer(word, float(np.exp(one.logs)), one.tokens)
    ranked = sorted(found.values(), key=lambda pair: -pair[0])
    return [answer for _, answer in ranked[:k]]


def _grown(
    model: LanguageModel,
    text: Laid,
    mask: int,
    blank: int,
    kept: list[_Partial],
    count: int,
    allowed: Tensor,
    most: int,
) -> list[_Partial]:
    """Words of one piece more, the best `most` of them."""
    place = _places(text, mask)[blank]
    asked = []
    for one in kept:
        inside = [*one.tokens, *[mask] * (count - len(one.tokens))]
        asked.append((_stretched(text, place, inside), [place + len(one.tokens)]))
    grown = []
    for one, logs in zip(kept, _logs(model, asked), strict=True):
        best, index = logs[0].masked_fill(~allowed, float("-inf")).topk(min(most, logs.shape[1]))
        grown += [
            _Partial([*one.tokens, token], one.logs + log)
            for token, log in zip(index.tolist(), best.tolist(), strict=True)
            if log > float("-inf")
        ]
    return sorted(grown, key=lambda one: -one.logs)[:most]


def _stretched(text: Laid, place: int, inside: list[int]) -> Laid:
    """The text with several tokens where one was."""
    times = np.ones(len(text.ids), dtype=np.int64)
    times[place] = len(inside)
    ids = np.repeat(text.ids, times)
    ids[place : place + len(inside)] = inside
    return Laid(ids, np.repeat(text.segments, times), np.repeat(text.special, times))


def _logs(model: LanguageModel, asked: Sequence[tuple[Laid, list[int]]]) -> list[Tensor]:
    """Log-probabilities `[places, V]` of every token at some places of each text, on the CPU."""
    device = model.tokens.weight.device
    found: list[Tensor] = []
    for start in range(0, len(asked), TOGETHER):
        part = asked[start : start + TOGETHER]
        batch = _batch(model, part).to(device)
        logits = model.logits(model.states(batch), batch)
        assert logits is not None
        check_outputs(logits, "logits")
        found += torch.split(logits.float().log_softmax(-1).cpu(), [len(places) for _, places in part])
    return found


def _batch(model: LanguageModel, asked: Sequence[tuple[Laid, list[int]]]) -> Batch:
    """Texts in rows, with a target at each place; a model of two streams hides what it is to predict by rank."""
    lengths = np.array([len(text.ids) for text, _ in asked])
    offsets = bounds(lengths)
    where = np.fromiter(_flat(offsets.tolist(), asked), dtype=np.int64)
    targets = np.full(int(offsets[-1]), IGNORE)
    targets[where] = 0
    order = None
    if model.spec.shape == "two-stream":
        order = np.zeros(int(offsets[-1]), dtype=np.int64)
        order[where] = 1
    segments = np.concatenate([text.segments for text, _ in asked])
    flat = Sequences(
        tokens=np.concatenate([text.ids for text, _ in asked]),
        offsets=offsets,
        targets=targets,
        order=order,
        segments=segments if segments.any() else None,
    )
    flat = reserve(flat, slots_of(model)) if slots_of(model) else flat
    row, length = rows_of(flat.lengths)
    return lay_out(flat, row, Shape(rows=int(row[-1]) + 1, length=length))


def _flat(offsets: list[int], asked: Sequence[tuple[Laid, list[int]]]) -> Iterator[int]:
    for start, (_, places) in zip(offsets, asked, strict=False):
        yield from (start + place for place in places)
