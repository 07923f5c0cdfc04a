"""Tokenization of texts into flat arrays: long texts in pieces, cached or by the library, with the same ids."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer as Raw

from pretune.text.tokenizer.cache import UnitCache, encode_directly, is_separable, split_pieces

BATCH_CHARACTERS = 2**21
"""Characters per batch, which bounds the memory."""
PIECE_CHARACTERS = 2**16
"""Longer texts are split into such pieces if that changes no token."""
TRIAL_CHARACTERS = 2**17
"""Number of characters after which testing for a cache pays off."""


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """Tokens of D texts, T in all, without special tokens around them.

    A *word* is a unit of the pre-tokenizer, which no piece crosses. So punctuation is a separate word for WordPiece and
    byte-level BPE, and part of a word if only white space separates words (unigram, characters). Without a
    pre-tokenizer a word starts at white space. A special token in a text is a word of its own.
    """

    ids: NDArray[np.uint32]  # [T]
    offsets: NDArray[np.int64]  # [D + 1] text i is ids[offsets[i]:offsets[i + 1]]
    word_start: NDArray[np.bool_]  # [T] the first token of a word
    starts: NDArray[np.int32]  # [T] character of the text at which a token starts, without white space before it

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, text: int) -> NDArray[np.uint32]:
        """Return the ids of one text."""
        if not 0 <= text < len(self):
            raise IndexError(f"text {text} of {len(self)}")
        return self.ids[self.offsets[text] : self.offsets[text + 1]]

    def find_tokens(self, text: int, characters: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens of a text, counted from 0, that start at or first after the given characters.

        This maps sentence starts to token positions. A space may be a token of its own: pass the character at which the
        white space before a sentence starts. After the last token it is the number of tokens.
        """
        starts = self.starts[self.offsets[text] : self.offsets[text + 1]]
        return np.searchsorted(starts, np.asarray(characters), "left").astype(np.int64)


@dataclass(slots=True)
class _EncodingBatch:
    """Pieces of texts that are encoded together in the same way."""

    has_special_tokens: bool  # the texts contain special tokens
    texts: list[str] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)  # text of each piece
    shifts: list[int] = field(default_factory=list)  # position of each piece in its text
    size: int = 0


class TokenizerEncoder:
    """Encoder of texts; with `literal`, special tokens in a text are treated as text."""

    def __init__(self, raw: Raw, literal: bool) -> None:
        self.raw = raw
        added_tokens = [token for token in raw.get_added_tokens_decoder().values() if not (literal and token.special)]
        names = sorted((token.content for token in added_tokens), key=len, reverse=True)
        self.special_pattern = re.compile("|".join(map(re.escape, names))) if names else None
        self.wordless = raw.pre_tokenizer is None
        self.seen_characters = 0
        self.cache: UnitCache | None = None
        # Tokens that are matched in normalized text cannot be detected beforehand.
        self.is_undecided = raw.normalizer is None or not any(token.normalized for token in added_tokens)

    def encode(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenize texts."""
        self._decide(sum(map(len, texts)))
        counts = np.zeros(len(texts), np.int64)
        ids, word_start, starts = [np.zeros(0, np.uint32)], [np.zeros(0, np.bool_)], [np.zeros(0, np.int32)]
        for run in self._iter_batches(texts):
            if self.cache is None or run.has_special_tokens:
                tokens = encode_directly(self.raw, run.texts, self.wordless)
            else:
                tokens = self.cache.encode(run.texts)
            np.add.at(counts, run.owners, tokens.counts)
            ids.append(tokens.ids)
            word_start.append(tokens.word_start)
            starts.append(tokens.starts + np.repeat(np.array(run.shifts, np.int32), tokens.counts))
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
            has_special_tokens = self.special_pattern is not None and self.special_pattern.search(text) is not None
            shift = 0
            for piece in (
                [text]
                if has_special_tokens or self.cache is None or len(text) <= PIECE_CHARACTERS
                else split_pieces(text, PIECE_CHARACTERS)
            ):
                if run.texts and (
                    has_special_tokens != run.has_special_tokens or run.size + len(piece) > BATCH_CHARACTERS
                ):
                    yield run
                    run = _EncodingBatch(has_special_tokens)
                run.has_special_tokens = has_special_tokens
                run.texts.append(piece)
                run.owners.append(owner)
                run.shifts.append(shift)
                run.size += len(piece)
                shift += len(piece)
        if run.texts:
            yield run
