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
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.batch_shape import BatchShape
from pretune.data.layout import lay_out
from pretune.data.ragged import compute_offsets
from pretune.data.sequences import Sequences
from pretune.data.virtual_tokens import reserve
from pretune.inference.finite_check import check_outputs
from pretune.inference.mask_positions import Blanks
from pretune.inference.prefill import assign_rows, count_prompt_slots
from pretune.inference.word_starts import get_piece_masks
from pretune.models.model import LanguageModel
from pretune.text.templates import TemplatedTokens
from pretune.text.tokenizer import Tokenizer

BATCH_TEXTS = 64
"""So many sequences are read at a time."""
BEAM_FACTOR = 4
"""Times as many unfinished words as answers are kept while pieces are added."""


class FillPrediction(NamedTuple):
    """What may stand in a blank, how likely the model finds it there, and its tokens."""

    word: str
    probability: float
    tokens: list[int]


class _PartialWord(NamedTuple):
    tokens: list[int]
    logprob: float


def unmask(
    model: LanguageModel, tokenizer: Tokenizer, blanks: Blanks, *, k: int, max_pieces: int
) -> list[list[FillPrediction]]:
    """The `k` best answers for every blank, of at most so many pieces; other blanks stay masked."""
    mask = tokenizer.special.get("mask")
    if mask is None:
        raise UsageError("this model's tokenizer has no mask token, so there is nothing that could mark a blank")
    if model.head is None:
        raise UsageError(
            "this model has no vocabulary head, so it cannot say what is in a blank; load one that has (beside a "
            "discriminator it is the one in its folder 'generator')"
        )
    text = _encode_blanks(tokenizer, blanks, mask, model)
    if max_pieces == 1:
        found = _compute_logprobs(model, [(text, _find_masks(text, mask))])[0]
        return [_predict_single(tokenizer, row, k) for row in found]
    return [
        _predict_words(model, tokenizer, blanks, text, blank, k=k, max_pieces=max_pieces)
        for blank in range(blanks.count)
    ]


def _encode_blanks(tokenizer: Tokenizer, blanks: Blanks, mask: int, model: LanguageModel) -> TemplatedTokens:
    """The text as the model reads it, a mask in each blank."""
    tokens = tokenizer.encode(blanks.fill([tokenizer.get_token(mask)] * blanks.count))
    laid = tokenizer.template.apply(tokens)
    if len(_find_masks(laid, mask)) != blanks.count:
        raise UsageError("this tokenizer does not read its own mask token where it is spelled; it cannot be used here")
    longest = model.spec.max_length
    if longest is not None and len(laid.ids) + count_prompt_slots(model) > longest:
        raise UsageError(f"a text of {len(laid.ids)} tokens; this model's positions end at {longest}; shorten it")
    return laid


def _find_masks(text: TemplatedTokens, mask: int) -> list[int]:
    return np.flatnonzero(text.ids == mask).tolist()


def _predict_single(tokenizer: Tokenizer, logprobs: Tensor, k: int) -> list[FillPrediction]:
    """One piece: the likeliest, whatever it is a piece of."""
    ordinary = get_piece_masks(tokenizer, logprobs.shape[0]).is_text
    best, index = logprobs.masked_fill(~ordinary, float("-inf")).topk(min(k, int(ordinary.sum())))
    return [
        FillPrediction(tokenizer.decode([token]).strip(), log, [token])
        for token, log in zip(index.tolist(), best.exp().tolist(), strict=True)
    ]


def _predict_words(
    model: LanguageModel,
    tokenizer: Tokenizer,
    blanks: Blanks,
    text: TemplatedTokens,
    blank: int,
    *,
    k: int,
    max_pieces: int,
) -> list[FillPrediction]:
    """Whole words of one piece, of two, …: the best of all."""
    pieces = get_piece_masks(tokenizer, model.spec.vocab)
    opening = blank == 0 and not blanks.parts[0]
    first = pieces.starts_text if opening else pieces.starts_word if blanks.follows_space(blank) else pieces.is_text
    found: dict[str, tuple[float, FillPrediction]] = {}
    for count in range(1, max_pieces + 1):
        kept = [_PartialWord([], 0.0)]
        for step in range(count):
            allowed = first if step == 0 else pieces.continues_word
            kept = _extend_words(model, text, tokenizer.special["mask"], blank, kept, count, allowed, k * BEAM_FACTOR)
        for one in kept:
            word = tokenizer.decode(one.tokens).strip()
            mean = one.logprob / count
            if word and (word not in found or mean > found[word][0]):
                found[word] = mean, FillPrediction(word, float(np.exp(one.logprob)), one.tokens)
    ranked = sorted(found.values(), key=lambda pair: -pair[0])
    return [answer for _, answer in ranked[:k]]


def _extend_words(
    model: LanguageModel,
    text: TemplatedTokens,
    mask: int,
    blank: int,
    partials: list[_PartialWord],
    count: int,
    allowed_tokens: Tensor,
    max_words: int,
) -> list[_PartialWord]:
    """Words of one piece more, the best `most` of them."""
    place = _find_masks(text, mask)[blank]
    asked = []
    for one in partials:
        inside = [*one.tokens, *[mask] * (count - len(one.tokens))]
        asked.append((_expand_mask(text, place, inside), [place + len(one.tokens)]))
    grown = []
    for one, logs in zip(partials, _compute_logprobs(model, asked), strict=True):
        best, index = logs[0].masked_fill(~allowed_tokens, float("-inf")).topk(min(max_words, logs.shape[1]))
        grown += [
            _PartialWord([*one.tokens, token], one.logprob + log)
            for token, log in zip(index.tolist(), best.tolist(), strict=True)
            if log > float("-inf")
        ]
    return sorted(grown, key=lambda one: -one.logprob)[:max_words]


def _expand_mask(text: TemplatedTokens, position: int, pieces: list[int]) -> TemplatedTokens:
    """The text with several tokens where one was."""
    times = np.ones(len(text.ids), dtype=np.int64)
    times[position] = len(pieces)
    ids = np.repeat(text.ids, times)
    ids[position : position + len(pieces)] = pieces
    return TemplatedTokens(ids, np.repeat(text.segments, times), np.repeat(text.is_special, times))


def _compute_logprobs(model: LanguageModel, queries: Sequence[tuple[TemplatedTokens, list[int]]]) -> list[Tensor]:
    """Log-probabilities `[places, V]` of every token at some places of each text, on the CPU."""
    device = model.tokens.weight.device
    found: list[Tensor] = []
    for start in range(0, len(queries), BATCH_TEXTS):
        part = queries[start : start + BATCH_TEXTS]
        batch = _build_batch(model, part).to(device)
        logits = model.logits(model.states(batch), batch)
        assert logits is not None
        check_outputs(logits, "logits")
        found += torch.split(logits.float().log_softmax(-1).cpu(), [len(places) for _, places in part])
    return found


def _build_batch(model: LanguageModel, queries: Sequence[tuple[TemplatedTokens, list[int]]]) -> Batch:
    """Texts in rows, with a target at each place; a model of two streams hides what it is to predict by rank."""
    lengths = np.array([len(text.ids) for text, _ in queries])
    offsets = compute_offsets(lengths)
    where = np.fromiter(_flatten_positions(offsets.tolist(), queries), dtype=np.int64)
    targets = np.full(int(offsets[-1]), IGNORE_INDEX)
    targets[where] = 0
    order = None
    if model.spec.shape == "two-stream":
        order = np.zeros(int(offsets[-1]), dtype=np.int64)
        order[where] = 1
    segments = np.concatenate([text.segments for text, _ in queries])
    flat = Sequences(
        tokens=np.concatenate([text.ids for text, _ in queries]),
        offsets=offsets,
        targets=targets,
        order=order,
        segments=segments if segments.any() else None,
    )
    flat = reserve(flat, count_prompt_slots(model)) if count_prompt_slots(model) else flat
    row, length = assign_rows(flat.lengths)
    return lay_out(flat, row, BatchShape(rows=int(row[-1]) + 1, length=length))


def _flatten_positions(offsets: list[int], queries: Sequence[tuple[TemplatedTokens, list[int]]]) -> Iterator[int]:
    for start, (_, places) in zip(offsets, queries, strict=False):
        yield from (start + place for place in places)
