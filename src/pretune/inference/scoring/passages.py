"""Passages: tokenized texts, each with a span to score; the rest is context.

Legend: S texts, T tokens in total, J scored tokens in total.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pretune.core.errors import DataError
from pretune.data.sequences import Bools, Ints, compute_offsets, spread
from pretune.text.tokenizer import Tokenizer

CharacterSpan = tuple[int, int]
"""Start and end of a part of a text, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passages:
    """S texts with spans. The tokens of a *unit* (a word, or an answer) are masked together."""

    tokens: Ints  # [T]
    offsets: Ints  # [S + 1]
    start: Ints  # [S] first scored token of each text
    stop: Ints  # [S] the token after the last scored one
    unit_starts: Bools  # [T] starts a unit
    truncated_texts: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """Tokens of each text [S]."""
        return np.diff(self.offsets)

    @property
    def span_lengths(self) -> Ints:
        """Scored tokens of each text [S]."""
        return self.stop - self.start

    def take(self, indices: Ints) -> "Passages":
        """Select passages by index."""
        lengths = self.lengths[indices]
        index = spread(self.offsets[:-1][indices], lengths)
        return replace(
            self,
            tokens=self.tokens[index],
            offsets=compute_offsets(lengths),
            start=self.start[indices],
            stop=self.stop[indices],
            unit_starts=self.unit_starts[index],
        )

    def fit(self, max_length: int | None) -> "Passages":
        """Truncate passages to `max_length`: first the context before the span, then the end of the span."""
        is_long = None if max_length is None else self.lengths > max_length
        if max_length is None or is_long is None or not is_long.any():
            return self
        lengths = np.minimum(self.lengths, max_length)
        removed_tokens = np.minimum(self.lengths - lengths, self.start)  # at the beginning
        index, offsets = spread(self.offsets[:-1] + removed_tokens, lengths), compute_offsets(lengths)
        units = self.unit_starts[index]
        units[offsets[:-1]] = True
        return replace(
            self,
            tokens=self.tokens[index],
            offsets=offsets,
            start=self.start - removed_tokens,
            stop=np.minimum(self.stop - removed_tokens, lengths),
            unit_starts=units,
            truncated_texts=self.truncated_texts + int(is_long.sum()),
        )


def encode_passages(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    spans: Sequence[CharacterSpan] | None = None,
    *,
    single_unit: bool = False,
) -> Passages:
    """Tokenize texts; `spans` are the spans to score, in characters (default: the whole texts).

    A span includes the whitespace before it. With `single_unit` it is one unit; otherwise each word is. Special tokens
    spelled out in a text are treated as text.
    """
    encoding = tokenizer.encode_batch(texts, literal=True)
    lengths = np.diff(encoding.offsets)
    start, stop = np.zeros(len(texts), dtype=np.int64), lengths.copy()
    units = encoding.word_start.copy()
    units[encoding.offsets[:-1][lengths > 0]] = True
    for number, span in enumerate(spans or ()):
        start[number], stop[number] = encoding.find_tokens(number, span)
        if single_unit:
            first = int(encoding.offsets[number])
            units[first + start[number] : first + stop[number]] = False
            units[first + start[number]] = True
            if stop[number] < lengths[number]:
                units[first + stop[number]] = True
    if (stop <= start).any():
        number = int((stop <= start).argmax())
        raise DataError(f"text {number + 1}, {texts[number][:60]!r}: its span has no tokens; remove it")
    return Passages(
        tokens=encoding.ids.astype(np.int64), offsets=encoding.offsets, start=start, stop=stop, unit_starts=units
    )
