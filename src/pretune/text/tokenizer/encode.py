"""From texts to flat arrays of tokens: long texts in pieces, each the fastest way that gives the library's ids."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer as Raw

from pretune.text.tokenizer.cache import UnitCache, encode_directly, is_separable
from pretune.text.tokenizer.units import split_pieces

BATCH_CHARACTERS = 2**21
"""So many characters are worked on at a time, which bounds the memory."""
PIECE_CHARACTERS = 2**16
"""Longer texts are cut into such pieces where that changes no token."""
TRIAL_CHARACTERS = 2**17
"""After so many characters it pays to find out whether units may be looked up."""


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """The tokens of D texts end to end, T in all, without special tokens around them.

    A *word* is what the tokenizer's pre-tokenizer gives: what no piece crosses. So punctuation is a word of its own for
    WordPiece and byte-level BPE, and belongs to its word where only white space divides (unigram, characters). Without
    a pre-tokenizer a word starts where white space does. A special token spelled out in a text is a word of its own.
    """

    ids: NDArray[np.uint32]  # [T]
    offsets: NDArray[np.int64]  # [D + 1] text i is ids[offsets[i]:offsets[i + 1]]
    word_start: NDArray[np.bool_]  # [T] the first token of a word
    starts: NDArray[np.int32]  # [T] the character of its text at which a token starts, white space before it left out

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, text: int) -> NDArray[np.uint32]:
        """The ids of one text."""
        if not 0 <= text < len(self):
            raise IndexError(f"text {text} of {len(self)}")
        return self.ids[self.offsets[text] : self.offsets[text + 1]]

    def find_tokens(self, text: int, characters: ArrayLike) -> NDArray[np.int64]:
        """The tokens of a text, counted from 0, that start at the given characters of it, or else first after them.

        This turns the starts of sentences into token positions. A space may be a token of its own: give the character
        at which the white space before a sentence starts. Behind the last token it is their number.
        """
        starts = self.starts[self.offsets[text] : self.offsets[text + 1]]
        return np.searchsorted(starts, np.asarray(characters), "left").astype(np.int64)


@dataclass(slots=True)
class _EncodingBatch:
    """Pieces of texts to be worked on together, all the same way."""

    has_special_tokens: bool  # a special token is spelled out in them
    texts: list[str] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)  # which text a piece is of
    shifts: list[int] = field(default_factory=list)  # at which character of it
    size: int = 0


class TokenizerEncoder:
    """One way of reading texts; with `literal` special tokens spelled out are text."""

    def __init__(self, raw: Raw, literal: bool) -> None:
        self.raw = raw
        added = [token for token in raw.get_added_tokens_decoder().values() if not (literal and token.special)]
        names = sorted((token.content for token in added), key=len, reverse=True)
        self.special_pattern = re.compile("|".join(map(re.escape, names))) if names else None
        self.wordless = raw.pre_tokenizer is None
        self.seen_characters = 0
        self.cache: UnitCache | None = None
        # Tokens that are looked for in normalised text cannot be seen from outside.
        self.is_undecided = raw.normalizer is None or not any(token.normalized for token in added)

    def encode(self, texts: Sequence[str]) -> TokenizedTexts:
        """The tokens of texts."""
        self._decide(sum(map(len, texts)))
        counts = np.zeros(len(texts), np.int64)
        ids, word_start, starts = [np.zeros(0, np.uint32)], [np.zeros(0, np.bool_)], [np.zeros(0, np.int32)]
        for run in self._iter_batches(texts):
            if self.cache is None or run.has_special_tokens:
                found = encode_directly(self.raw, run.texts, self.wordless)
            else:
                found = self.cache.encode(run.texts)
            np.add.at(counts, run.owners, found.counts)
            ids.append(found.ids)
            word_start.append(found.word_start)
            starts.append(found.starts + np.repeat(np.array(run.shifts, np.int32), found.counts))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return TokenizedTexts(np.concatenate(ids), offsets, np.concatenate(word_start), np.concatenate(starts))

    def _decide(self, size: int) -> None:
        self.seen_characters += size
        if self.is_undecided and self.seen_characters > TRIAL_CHARACTERS:
            self.is_undecided = False
            self.cache = UnitCache(self.raw) if is_separable(self.raw) else None

    def _iter_batches(self, texts: Sequence[str]) -> Iterator[_EncodingBatch]:
        run = _EncodingBatch(False)
        for owner, text in enumerate(texts):
            spelled = self.special_pattern is not None and self.special_pattern.search(text) is not None
            shift = 0
            for piece in (
                [text]
                if spelled or self.cache is None or len(text) <= PIECE_CHARACTERS
                else split_pieces(text, PIECE_CHARACTERS)
            ):
                if run.texts and (spelled != run.has_special_tokens or run.size + len(piece) > BATCH_CHARACTERS):
                    yield run
                    run = _EncodingBatch(spelled)
                run.has_special_tokens = spelled
                run.texts.append(piece)
                run.owners.append(owner)
                run.shifts.append(shift)
                run.size += len(piece)
                shift += len(piece)
        if run.texts:
            yield run
