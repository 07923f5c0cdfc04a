"""Words of tokenized texts: the word of every token, and which tokens are punctuation."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pretune.data.sequences import Bools, Ints
from pretune.text.tokenizer import Tokenizer

WORD_PATTERN = re.compile(r"\w+(?:['’]\w+)?")


@dataclass(frozen=True, slots=True)
class WordIndex:
    """Words of texts: text, character span, and the word of each token (-1: none)."""

    text_ids: Ints  # [V]
    spans: list[tuple[int, int]]
    owner: Ints  # [T] of the flat tokens, special ones included


def find_words(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    lengths: Ints,
    spans: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> WordIndex:
    """Map every token to its word, by the characters at which tokens start.

    `lengths` are those of the sequences `[S]`, special tokens included. The words of a text are its `spans`, in order;
    by default those that `WORD_PATTERN` matches.
    """
    encodings = tokenizer.encode_batch(texts)
    prefix_tokens, extra = len(tokenizer.template.prefix), tokenizer.template.special_count
    owner = np.full(int(lengths.sum()), -1, dtype=np.int64)
    text_ids, word_spans, position = list[int](), list[tuple[int, int]](), 0
    for i, text in enumerate(texts):
        text_spans = [match.span() for match in WORD_PATTERN.finditer(text)] if spans is None else [*spans[i]]
        token_count = int(lengths[i]) - extra
        starts = encodings.starts[encodings.offsets[i] : encodings.offsets[i] + token_count]
        if text_spans:
            begins, ends = np.array(text_spans).T
            word_ids = np.searchsorted(begins, starts, "right") - 1
            inside = (word_ids >= 0) & (starts < ends[np.maximum(word_ids, 0)])
            place = slice(position + prefix_tokens, position + prefix_tokens + token_count)
            owner[place][inside] = word_ids[inside] + len(word_spans)
        text_ids += [i] * len(text_spans)
        word_spans += text_spans
        position += int(lengths[i])
    return WordIndex(np.array(text_ids, dtype=np.int64), word_spans, owner)


def find_punctuation(tokenizer: Tokenizer, tokens: Ints) -> Bools:
    """Return the tokens `[T]` that are punctuation only; special tokens are none."""
    unique_ids, index = np.unique(tokens, return_inverse=True)
    flags = [int(i) not in tokenizer.special_ids and _is_punctuation(tokenizer.decode([i])) for i in unique_ids]
    return np.asarray(flags, dtype=np.bool_)[index.ravel()]


def format_tokens(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Return the spelling of each token as a reader expects it: without the marks of a tokenizer for spaces.

    Tokens that are no complete characters keep the tokenizer's spelling.
    """
    names: list[str] = []
    for token in tokens:
        spelling = tokenizer.get_token(token) if token < tokenizer.vocab else f"#{token}"
        text = spelling if token in tokenizer.special_ids else tokenizer.decode([token]).strip()
        is_piece = spelling.startswith("##")
        names.append(spelling if is_piece or not text or "\ufffd" in text else text)
    return names


def _is_punctuation(text: str) -> bool:
    characters = text.strip()
    return bool(characters) and all(unicodedata.category(character)[0] in "PS" for character in characters)
