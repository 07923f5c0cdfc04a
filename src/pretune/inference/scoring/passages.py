"""`Passages`: texts as tokens, and the stretch of each that is judged; the rest is what it is judged from.

Legend: S texts, T tokens of all, J judged tokens of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pretune.core.errors import DataError
from pretune.data.ragged import Bools, Ints, compute_offsets, spread
from pretune.text.tokenizer import Tokenizer

CharacterSpan = tuple[int, int]
"""Where a part of a text starts and ends, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passages:
    """S texts. Tokens of one *unit* (a word, or an answer) are hidden together from those before them in it."""

    tokens: Ints  # [T]
    offsets: Ints  # [S + 1]
    start: Ints  # [S] the first judged token of each, counted from its own first
    stop: Ints  # [S] the one after the last
    unit_starts: Bools  # [T] starts a unit
    truncated_texts: int = 0  # texts that have lost tokens

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """[S]"""
        return np.diff(self.offsets)

    @property
    def span_lengths(self) -> Ints:
        """[S] how many tokens of each are judged."""
        return self.stop - self.start

    def take(self, indices: Ints) -> "Passages":
        """Some of them, in the order asked for."""
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
        """Those that are longer than `room` cut: what is before the judged stretch is lost first, then its end."""
        long = None if max_length is None else self.lengths > max_length
        if max_length is None or long is None or not long.any():
            return self
        lengths = np.minimum(self.lengths, max_length)
        away = np.minimum(self.lengths - lengths, self.start)  # from the beginning
        index, offsets = spread(self.offsets[:-1] + away, lengths), compute_offsets(lengths)
        units = self.unit_starts[index]
        units[offsets[:-1]] = True
        return replace(
            self,
            tokens=self.tokens[index],
            offsets=offsets,
            start=self.start - away,
            stop=np.minimum(self.stop - away, lengths),
            unit_starts=units,
            truncated_texts=self.truncated_texts + int(long.sum()),
        )


def encode_passages(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    spans: Sequence[CharacterSpan] | None = None,
    *,
    single_unit: bool = False,
) -> Passages:
    """Texts as tokens; `span_lengths` are the stretches to judge, in characters, all of each text by default.

    A stretch begins with the white space before it. With `whole` it is one unit, not as many as it has words. Special
    tokens spelled out in a text are text.
    """
    found = tokenizer.encode_batch(texts, literal=True)
    lengths = np.diff(found.offsets)
    start, stop = np.zeros(len(texts), dtype=np.int64), lengths.copy()
    units = found.word_start.copy()
    units[found.offsets[:-1][lengths > 0]] = True
    for at, stretch in enumerate(spans or ()):
        start[at], stop[at] = found.find_tokens(at, stretch)
        if single_unit:
            first = int(found.offsets[at])
            units[first + start[at] : first + stop[at]] = False
            units[first + start[at]] = True
            if stop[at] < lengths[at]:
                units[first + stop[at]] = True
    if (stop <= start).any():
        at = int((stop <= start).argmax())
        raise DataError(f"text {at + 1}, {texts[at][:60]!r}: there is no token in it to judge; leave it out")
    return Passages(tokens=found.ids.astype(np.int64), offsets=found.offsets, start=start, stop=stop, unit_starts=units)
