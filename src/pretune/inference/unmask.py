"""Masks filled by an encoder: a single token, or words of several tokens, one after another.

A word of m tokens is searched with m masks in place of one: the first is filled, then the second, and so on, with a
beam of the best words. Its probability is the product of its tokens' probabilities at the time they were chosen; words
of different lengths are compared by their mean log-probability, because each further token lowers the product.

A mask in a text is the model's mask token or one of its sentinels; in a text without those `[MASK]` or `<mask>`, and in
a text without those either a run of three or more underscores.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from tokenizers.models import WordLevel
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import pack_in_order
from pretune.data.sequences import Sequences, compute_offsets, reserve
from pretune.inference.generate import REPLACEMENT_CHARACTER
from pretune.inference.prompts import count_prompt_slots, get_length_limits
from pretune.inference.text_model import check_outputs
from pretune.models.model import LanguageModel
from pretune.text.template import TemplatedTokens
from pretune.text.tokenizer import Tokenizer

GENERIC_MASK = re.compile(r"\[MASK\]|<mask>")
UNDERSCORES = re.compile(r"_{3,}")
BLANK_SPELLINGS = "[MASK], <mask> or ___"


@dataclass(frozen=True, slots=True)
class Blanks:
    """Text around n masks: n + 1 parts.

    >>> Blanks.find("Paris is ___.", mask_tokens=None)
    Blanks(parts=('Paris is ', '.'))
    """

    parts: tuple[str, ...]

    @classmethod
    def find(cls, text: str, *, mask_tokens: str | Sequence[str] | None) -> "Blanks":
        """Find the masks of a text, given the model's mask token or sentinels; raises a UsageError if there is none."""
        spellings = [mask_tokens] if isinstance(mask_tokens, str) else [*(mask_tokens or ())]
        own_pattern = [re.compile("|".join(map(re.escape, spellings)))] if spellings else []
        for pattern in (*own_pattern, GENERIC_MASK, UNDERSCORES):
            parts = pattern.split(text)
            if len(parts) > 1:
                return cls(tuple(parts))
        first = next(iter(spellings), BLANK_SPELLINGS)
        own_spelling = "" if first in BLANK_SPELLINGS else f"{first} (this model's), "
        start = text if len(text) <= 60 else f"{text[:59]}…"
        raise UsageError(f"no mask in '{start}'; write it as {own_spelling}{BLANK_SPELLINGS}")

    @property
    def count(self) -> int:
        return len(self.parts) - 1

    def fill(self, words: list[str]) -> str:
        """Insert a word into each mask."""
        pairs = zip(words, self.parts[1:], strict=True)
        return self.parts[0] + "".join(word + part for word, part in pairs)

    def follows_space(self, blank: int) -> bool:
        """Return True if whitespace precedes a mask."""
        return self.parts[blank][-1:].isspace()


BATCH_TEXTS = 64
"""Sequences per batch."""
BEAM_FACTOR = 4
"""Beam size as a multiple of the number of predictions."""


class FillPrediction(NamedTuple):
    """Filler of a mask, its probability, and its tokens."""

    word: str
    probability: float
    tokens: list[int]


class _PartialWord(NamedTuple):
    tokens: list[int]
    logprob: float


def unmask(
    model: LanguageModel, tokenizer: Tokenizer, texts: Sequence[Blanks], *, k: int, max_pieces: int
) -> list[list[list[FillPrediction]]]:
    """Return the `k` best fillers of every mask of every text, of at most `max_pieces` tokens.

    Other masks of a text stay masked. Single tokens of all texts are predicted in shared batches.
    """
    mask = tokenizer.special.get("mask")
    if mask is None:
        raise UsageError("cannot fill masks: the tokenizer has no mask token")
    if model.head is None:
        raise UsageError(
            "cannot fill masks: the model has no vocabulary head; load one with its head (the generator of a "
            "discriminator is in its folder 'generator')"
        )
    encoded_texts = [_encode_blanks(tokenizer, blanks, mask, model, max_pieces) for blanks in texts]
    if max_pieces == 1:
        queries = [(text, _find_masks(text, mask)) for text in encoded_texts]
        return [[_predict_single(tokenizer, row, k) for row in rows] for rows in _compute_logprobs(model, queries)]
    search = WordSearch(model=model, tokenizer=tokenizer, k=k, max_pieces=max_pieces)
    return [
        [search.predict(blanks, text, blank) for blank in range(blanks.count)]
        for blanks, text in zip(texts, encoded_texts, strict=True)
    ]


def count_word_sequences(masks: int, *, k: int, max_pieces: int) -> int:
    """Return the maximum number of sequences in the forward passes of `unmask` for a text; 1 if fillers are tokens."""
    if max_pieces == 1:
        return 1
    # A word of n tokens: one sequence for its first token, and one for each word of the beam for every other token.
    return masks * sum(1 + (count - 1) * k * BEAM_FACTOR for count in range(1, max_pieces + 1))


def _encode_blanks(
    tokenizer: Tokenizer, blanks: Blanks, mask: int, model: LanguageModel, max_pieces: int
) -> TemplatedTokens:
    """Encode the text with a mask token in each blank; raises a UsageError if no word of `max_pieces` tokens fits."""
    tokens = tokenizer.encode(blanks.fill([tokenizer.get_token(mask)] * blanks.count), add_special_tokens=False)
    templated_tokens = tokenizer.template.apply(tokens)
    if len(_find_masks(templated_tokens, mask)) != blanks.count:
        raise UsageError("cannot fill masks: the tokenizer does not recognize its mask token in text")
    max_length = get_length_limits(model)[0]
    if max_length is not None and len(templated_tokens.ids) + max_pieces - 1 > max_length:
        words = f" with words of {max_pieces} tokens" if max_pieces > 1 else ""
        raise UsageError(
            f"the text has {len(templated_tokens.ids)} tokens; the model's limit is {max_length - max_pieces + 1}"
            f"{words}; shorten it"
        )
    return templated_tokens


def _find_masks(text: TemplatedTokens, mask: int) -> list[int]:
    return np.flatnonzero(text.ids == mask).tolist()


def _predict_single(tokenizer: Tokenizer, logprobs: Tensor, k: int) -> list[FillPrediction]:
    """Return the most probable single tokens."""
    is_text = get_piece_masks(tokenizer, logprobs.shape[0]).is_text
    best, index = logprobs.masked_fill(~is_text, float("-inf")).topk(min(k, int(is_text.sum())))
    return [
        FillPrediction(tokenizer.decode([token]).strip(), probability, [token])
        for token, probability in zip(index.tolist(), best.exp().tolist(), strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSearch:
    """Search for whole words of one token, of two, …, up to `max_pieces`."""

    model: LanguageModel
    tokenizer: Tokenizer
    k: int
    max_pieces: int

    def predict(self, blanks: Blanks, text: TemplatedTokens, blank: int) -> list[FillPrediction]:
        """Return the best words for a mask of a text."""
        pieces = get_piece_masks(self.tokenizer, self.model.spec.vocab)
        allowed_first = pieces.starts_word if blanks.follows_space(blank) else pieces.is_text
        if blank == 0 and not blanks.parts[0]:
            allowed_first = pieces.starts_text
        position = _find_masks(text, self.tokenizer.special["mask"])[blank]
        predictions: dict[str, tuple[float, FillPrediction]] = {}
        for count in range(1, self.max_pieces + 1):
            partials = [_PartialWord([], 0.0)]
            for step in range(count):
                allowed_tokens = pieces.continues_word if step else allowed_first & pieces.is_complete
                partials = self._extend(text, position, partials, count, allowed_tokens)
            for partial in partials:
                word = self.tokenizer.decode(partial.tokens).strip()
                mean_logprob = partial.logprob / count
                if word and (word not in predictions or mean_logprob > predictions[word][0]):
                    probability = float(np.exp(partial.logprob))
                    predictions[word] = mean_logprob, FillPrediction(word, probability, partial.tokens)
        candidates = sorted(predictions.values(), key=lambda pair: -pair[0])
        return [prediction for _, prediction in candidates[: self.k]]

    def _extend(
        self, text: TemplatedTokens, position: int, partials: list[_PartialWord], count: int, allowed_tokens: Tensor
    ) -> list[_PartialWord]:
        """Extend words of `count` tokens by one token; returns the best."""
        max_words, mask = self.k * BEAM_FACTOR, self.tokenizer.special["mask"]
        queries = []
        for partial in partials:
            tokens = [*partial.tokens, *[mask] * (count - len(partial.tokens))]
            queries.append((_expand_mask(text, position, tokens), [position + len(partial.tokens)]))
        longer_words = []
        for partial, logprobs in zip(partials, _compute_logprobs(self.model, queries), strict=True):
            logprobs = logprobs[0].masked_fill(~allowed_tokens, float("-inf"))
            best, index = logprobs.topk(min(max_words, len(logprobs)))
            for token, logprob in zip(index.tolist(), best.tolist(), strict=True):
                if logprob > float("-inf"):
                    longer_words.append(_PartialWord([*partial.tokens, token], partial.logprob + logprob))
        return sorted(longer_words, key=lambda partial: -partial.logprob)[:max_words]


def _expand_mask(text: TemplatedTokens, position: int, pieces: list[int]) -> TemplatedTokens:
    """Replace the token at a position by several tokens."""
    times = np.ones(len(text.ids), dtype=np.int64)
    times[position] = len(pieces)
    ids = np.repeat(text.ids, times)
    ids[position : position + len(pieces)] = pieces
    return TemplatedTokens(ids, np.repeat(text.segments, times), np.repeat(text.is_special, times))


def _compute_logprobs(model: LanguageModel, queries: Sequence[tuple[TemplatedTokens, list[int]]]) -> list[Tensor]:
    """Return the log-probabilities `[positions, V]` of all tokens at some positions of each text, on the CPU."""
    device = model.tokens.weight.device
    logprobs: list[Tensor] = []
    for start in range(0, len(queries), BATCH_TEXTS):
        part = queries[start : start + BATCH_TEXTS]
        batch = _build_batch(model, part).to(device)
        logits = model.logits(model.states(batch), batch)
        assert logits is not None
        check_outputs(logits, "logits")
        logprobs += torch.split(logits.float().log_softmax(-1).cpu(), [len(positions) for _, positions in part])
    return logprobs


def _build_batch(model: LanguageModel, queries: Sequence[tuple[TemplatedTokens, list[int]]]) -> Batch:
    """Pack texts with a target at each position; for a two-stream model, hide targets by the order."""
    lengths = np.array([len(text.ids) for text, _ in queries])
    offsets = compute_offsets(lengths)
    positions = np.concatenate([start + np.array(part) for start, (_, part) in zip(offsets[:-1], queries, strict=True)])
    targets = np.full(int(offsets[-1]), IGNORE_INDEX)
    targets[positions] = 0
    order = None
    if model.spec.shape == "two-stream":
        order = np.zeros(int(offsets[-1]), dtype=np.int64)
        order[positions] = 1
    tokens, segments = (np.concatenate(part) for part in zip(*((t.ids, t.segments) for t, _ in queries), strict=True))
    flat = Sequences(tokens=tokens, offsets=offsets, targets=targets, order=order)
    flat = replace(flat, segments=segments) if segments.any() else flat
    return pack_in_order(reserve(flat, count_prompt_slots(model)))


MARKERS = ("Ġ", "▁")
"""Markers of a preceding space: byte-level vocabularies, and SentencePiece."""


class PieceMasks(NamedTuple):
    """Boolean masks `[V]` over the model's vocabulary."""

    is_text: Tensor  # not special, and in the tokenizer's vocabulary
    is_complete: Tensor  # whole characters, no single bytes of one
    starts_word: Tensor  # may follow a space
    starts_text: Tensor  # may start a text
    continues_word: Tensor  # continues a word


_PIECE_MASKS: "WeakKeyDictionary[Tokenizer, PieceMasks]" = WeakKeyDictionary()


def get_piece_masks(tokenizer: Tokenizer, vocab: int) -> PieceMasks:
    """Return the masks of a tokenizer, cached; `vocab` is the model's vocabulary size."""
    if tokenizer not in _PIECE_MASKS or len(_PIECE_MASKS[tokenizer].is_text) != vocab:
        _PIECE_MASKS[tokenizer] = _classify_pieces(tokenizer, vocab)
    return _PIECE_MASKS[tokenizer]


def _classify_pieces(tokenizer: Tokenizer, vocab: int) -> PieceMasks:
    """Classify tokens by their text: the spelling in a vocabulary may be one of bytes."""
    model = tokenizer.raw.model
    pieces = {i: piece for piece, i in tokenizer.raw.get_vocab(with_added_tokens=False).items() if i < vocab}
    texts = dict(zip(pieces, tokenizer.raw.decode_batch([[i] for i in pieces]), strict=True))
    marked_ids = {i for i, piece in pieces.items() if piece.startswith(MARKERS) and texts[i][:1] != piece[0]}
    has_marker = bool(marked_ids)
    prefix, suffix = (getattr(model, name, None) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    # Without marks of words, as in vocabularies of characters, every letter may continue a word.
    has_words = has_marker or prefix != "" or suffix != "" or isinstance(model, WordLevel)
    mask = tokenizer.raw.get_added_tokens_decoder().get(tokenizer.special.get("mask", -1))
    mask_includes_space = mask is not None and mask.lstrip  # the filler must then bring the space
    is_text, is_complete, starts_word, starts_text, continues_word = np.zeros((5, vocab), dtype=np.bool_)
    for i in pieces.keys() - tokenizer.special_ids:
        piece, text, is_marked = pieces[i], texts[i], i in marked_ids
        is_continuation = not has_marker and prefix != "" and piece.startswith(prefix)
        is_text[i], is_complete[i] = True, REPLACEMENT_CHARACTER not in text
        starts_text[i] = not is_continuation and (has_words or not text.isspace())
        starts_word[i] = starts_text[i] and (is_marked or not (has_marker and mask_includes_space))
        if is_continuation:
            continues_word[i] = len(piece) > len(prefix)
        elif has_marker or not has_words:
            continues_word[i] = not is_marked and _is_word_part(text)
    return PieceMasks(*map(torch.from_numpy, (is_text, is_complete, starts_word, starts_text, continues_word)))


def _is_word_part(text: str) -> bool:
    """Return True for letters, digits and the marks on them, such as the vowel signs of Indic scripts."""
    return bool(text) and all(letter.isalnum() or unicodedata.category(letter)[0] == "M" for letter in text)
