"""Which pieces of a vocabulary begin a word, and which go on with one."""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from tokenizers.models import WordPiece
from torch import Tensor

from pretune.text.tokenizer import Tokenizer

MARKERS = ("Ġ", "▁")
"""How a piece says that a space is before it: byte-level vocabularies, and those of spaces as pieces."""
CONTINUATION_PREFIX = "##"


class PieceMasks(NamedTuple):
    """Bool `[V]` each, for as many words as the model's vocabulary has."""

    is_text: Tensor  # a token of text: not special, and spelled by the tokenizer
    starts_word: Tensor  # of those, may come after a space
    starts_text: Tensor  # of those, may come where a text begins
    continues_word: Tensor  # of those, goes on with a word


_PIECE_MASKS: "WeakKeyDictionary[Tokenizer, PieceMasks]" = WeakKeyDictionary()


def get_piece_masks(tokenizer: Tokenizer, vocab: int) -> PieceMasks:
    """The pieces of a tokenizer, found once; `vocab` is how many the model has."""
    if tokenizer not in _PIECE_MASKS or len(_PIECE_MASKS[tokenizer].is_text) != vocab:
        _PIECE_MASKS[tokenizer] = _classify_pieces(tokenizer, vocab)
    return _PIECE_MASKS[tokenizer]


def _classify_pieces(tokenizer: Tokenizer, vocab: int) -> PieceMasks:
    ordinary, begins, opens, continues = (torch.zeros(vocab, dtype=torch.bool) for _ in range(4))
    spelled = {i: piece for piece, i in tokenizer.raw.get_vocab(with_added_tokens=False).items()}
    marker = max(MARKERS, key=lambda mark: sum(piece.startswith(mark) for piece in spelled.values()))
    marked = not isinstance(tokenizer.raw.model, WordPiece) and any(
        piece.startswith(marker) for piece in spelled.values()
    )
    mask = tokenizer.raw.get_added_tokens_decoder().get(tokenizer.special.get("mask", -1))
    takes = mask is not None and mask.lstrip  # the mask takes the space before it along, so the answer brings it
    for i, piece in spelled.items():
        if i in tokenizer.special_ids or i >= vocab:
            continue
        ordinary[i] = True
        opens[i] = marked or not piece.startswith(CONTINUATION_PREFIX)
        if marked:
            begins[i] = piece.startswith(marker) or not takes
            continues[i] = not piece.startswith(marker) and piece.isalnum()
        else:
            begins[i] = not piece.startswith(CONTINUATION_PREFIX)
            continues[i] = piece.startswith(CONTINUATION_PREFIX) and len(piece) > len(CONTINUATION_PREFIX)
    return PieceMasks(ordinary, begins, opens, continues)
