"""Frames: the special tokens around a text, or around and between two, as ids and segments.

    Frame(single=((CLS, 0), (A, 0), (SEP, 0)), pair=((CLS, 0), (A, 0), (SEP, 0), (B, 1), (SEP, 1)))

is "[CLS] a [SEP]" and "[CLS] a [SEP] b [SEP]" with the second text and its separator in segment 1. For the layout of a
tokenizer this is `Frame.of(tokenizer.template)`.
"""

from dataclasses import dataclass

import numpy as np

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.data.ragged import Bools, Ints, begins, bounds, spread
from pretune.data.sequences import Sequences
from pretune.data.shards import Shards
from pretune.text.templates import Special, Template, Text

A, B = -1, -2
"""Where the first and the second text go in a frame."""


@spec
class Frame:
    """What stands around one text and around two: (token id, segment), with `A` and `B` for the texts."""

    single: tuple[tuple[int, int], ...] = ((A, 0),)
    pair: tuple[tuple[int, int], ...] = ((A, 0), (B, 1))

    def __post_init__(self) -> None:
        for name, texts in (("single", [A]), ("pair", [A, B])):
            found = [token for token, _ in getattr(self, name) if token < 0]
            if found != texts:
                raise UsageError(f"the {name} frame must hold the text(s) {texts} once and in order, found {found}")

    @classmethod
    def of(cls, template: Template, *, end: int | None = None) -> "Frame":
        """The layout of a tokenizer.

        With `end` that token follows where the layout ends in a text: "<|endoftext|>" after the documents of GPT-2,
        whose layout has nothing around them.
        """
        return cls(single=_laid(template.single, end), pair=_laid(template.pair, end))

    @property
    def room(self) -> int:
        """How many tokens the single frame adds."""
        return len(self.single) - 1

    @property
    def pair_room(self) -> int:
        """How many tokens the pair frame adds."""
        return len(self.pair) - 2

    @property
    def segmented(self) -> bool:
        """Whether the single frame has anything outside segment 0, which is what a model without segments reads."""
        return any(segment for _, segment in self.single)

    def around(self, start: Ints, length: Ints) -> "Pieces":
        """Each text in the single frame."""
        return self._fill(self.single, {A: (start, length)})

    def around_two(self, start: Ints, length: Ints, second: Ints, second_length: Ints) -> "Pieces":
        """Each pair of texts in the pair frame; where the second is empty, the first alone in the single frame."""
        texts = {A: (start, length), B: (second, second_length)}
        alone, pairs = self._fill(self.single, texts), self._fill(self.pair, texts)
        lone = np.flatnonzero(second_length == 0)
        return pairs.replaced(lone, alone.take(lone)) if len(lone) else pairs

    def _fill(self, frame: tuple[tuple[int, int], ...], texts: dict[int, tuple[Ints, Ints]]) -> "Pieces":
        """S copies of a frame, S x P pieces."""
        count = len(texts[A][0])
        start, length = np.empty((count, len(frame)), dtype=np.int64), np.ones((count, len(frame)), dtype=np.int64)
        for column, (token, _) in enumerate(frame):
            start[:, column] = token if token >= 0 else texts[token][0]
            if token < 0:
                length[:, column] = texts[token][1]
        return Pieces(
            counts=np.full(count, len(frame)),
            start=start.ravel(),
            length=length.ravel(),
            special=np.tile([token >= 0 for token, _ in frame], count),
            segment=np.tile(np.array([segment for _, segment in frame]), count),
        )


def _laid(parts: tuple[Special | Text, ...], end: int | None) -> tuple[tuple[int, int], ...]:
    """One layout of a template, closed by `end` where it is open."""
    texts = {"a": A, "b": B}
    laid = tuple((part.token if isinstance(part, Special) else texts[part.which], part.segment) for part in parts)
    last, segment = laid[-1]
    return laid if end is None or last >= 0 else (*laid, (end, segment))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """What S sequences are put together from: stretches of the shards and single special tokens."""

    counts: Ints  # [S] pieces of each sequence
    start: Ints  # [P] position in the shards, or the special token's id
    length: Ints  # [P] may be 0
    special: Bools  # [P]
    segment: Ints  # [P]

    def take(self, which: Ints) -> "Pieces":
        """The pieces of some of the sequences."""
        index = spread(begins(self.counts)[which], self.counts[which])
        return Pieces(
            counts=self.counts[which],
            start=self.start[index],
            length=self.length[index],
            special=self.special[index],
            segment=self.segment[index],
        )

    def replaced(self, which: Ints, others: "Pieces") -> "Pieces":
        """These, with other pieces in place of those of some sequences."""
        both = Pieces(
            counts=np.concatenate((self.counts, others.counts)),
            start=np.concatenate((self.start, others.start)),
            length=np.concatenate((self.length, others.length)),
            special=np.concatenate((self.special, others.special)),
            segment=np.concatenate((self.segment, others.segment)),
        )
        index = np.arange(len(self.counts))
        index[which] = len(self.counts) + np.arange(len(which))
        return both.take(index)

    def read(
        self, shards: Shards, *, words: bool = False, sentences: bool = False, segments: bool = False
    ) -> Sequences:
        """Fetch the tokens, and what is asked for with them."""
        special = np.repeat(self.special, self.length)
        texts = ~self.special & (self.length > 0)
        start, length = self.start[texts], self.length[texts]
        tokens = np.repeat(self.start, self.length)
        tokens[~special] = shards.take(start, length)
        first = begins(self.length)
        starts_word = starts_sentence = None
        if words:
            starts_word = special.copy()
            starts_word[~special] = shards.take_words(start, length)
            starts_word[first[texts]] = True
        if sentences:
            starts_sentence = special.copy()
            order = np.argsort(start)  # asked for in order, they are found several times as fast
            low, high = np.empty_like(start), np.empty_like(start)
            low[order] = np.searchsorted(shards.sentences, start[order])
            high[order] = np.searchsorted(shards.sentences, (start + length)[order])
            inside = shards.sentences[spread(low, high - low)]  # every sentence that starts in a text
            starts_sentence[inside + np.repeat(first[texts] - start, high - low)] = True
            starts_sentence[first[texts]] = True
        ends = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.length)))
        return Sequences(
            tokens=tokens,
            offsets=ends[bounds(self.counts)],
            special=special,
            words=starts_word,
            sentences=starts_sentence,
            segments=np.repeat(self.segment, self.length) if segments else None,
        )
