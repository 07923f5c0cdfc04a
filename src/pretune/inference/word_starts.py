"""Masks of the vocabulary: tokens that start a word, and tokens that continue one."""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from tokenizers.models import WordPiece
from torch import Tensor

from pretune.text.tokenizer import Tokenizer

MARKERS = ("Ġ", "▁")
"""Markers of a preceding space: byte-level vocabularies, and SentencePiece."""
CONTINUATION_PREFIX = "##"


class PieceMasks(NamedTuple):
    """Boolean masks `[V]` over the model's vocabulary."""

    is_text: Tensor  # not special, and in the tokenizer's vocabulary
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
    is_text, starts_word, starts_text, continues_word = (torch.zeros(vocab, dtype=torch.bool) for _ in range(4))
    pieces = {i: piece for piece, i in tokenizer.raw.get_vocab(with_added_tokens=False).items()}
    marker = max(MARKERS, key=lambda mark: sum(piece.startswith(mark) for piece in pieces.values()))
    has_marker = not isinstance(tokenizer.raw.model, WordPiece) and any(
        piece.startswith(marker) for piece in pieces.values()
    )
    mask = tokenizer.raw.get_added_tokens_decoder().get(tokenizer.special.get("mask", -1))
    mask_includes_space = mask is not None and mask.lstrip  # the filler must then bring the space
    for i, piece in pieces.items():
        if i in tokenizer.special_ids or i >= vocab:
            continue
        is_text[i] = True
        starts_text[i] = has_marker or not piece.startswith(CONTINUATION_PREFIX)
        if has_marker:
            starts_word[i] = piece.startswith(marker) or not mask_includes_space
            continues_word[i] = not piece.startswith(marker) and piece.isalnum()
        else:
            starts_word[i] = not piece.startswith(CONTINUATION_PREFIX)
            continues_word[i] = piece.startswith(CONTINUATION_PREFIX) and len(piece) > len(CONTINUATION_PREFIX)
    return PieceMasks(is_text, starts_word, starts_text, continues_word)
