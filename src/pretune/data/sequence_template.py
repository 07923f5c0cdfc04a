"""Sequence templates: special tokens around one text or two, as token ids and segments.

    SequenceTemplate(
        single=((CLS, 0), (TEXT_A, 0), (SEP, 0)),
        pair=((CLS, 0), (TEXT_A, 0), (SEP, 0), (TEXT_B, 1), (SEP, 1)),
    )

is "[CLS] a [SEP]" and "[CLS] a [SEP] b [SEP]" with the second text and its separator in segment 1.
`SequenceTemplate.from_template(tokenizer.template)` is the template of a tokenizer. Legend: S sequences, P pieces.
"""

from dataclasses import dataclass

import numpy as np

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.data.sequences import Bools, Ints, Sequences, compute_offsets, compute_starts, spread
from pretune.data.shards import Shards
from pretune.text.templates import SpecialPart, TextPart, TokenTemplate

TEXT_A, TEXT_B = -1, -2
"""Placeholders of the first and the second text in a template."""


@spec
class SequenceTemplate:
    """Layouts of one text and of two, as (token id, segment); `TEXT_A` and `TEXT_B` stand for the texts.

    Raises `UsageError` if a layout does not have its placeholders once each and in order.
    """

    single: tuple[tuple[int, int], ...] = ((TEXT_A, 0),)
    pair: tuple[tuple[int, int], ...] = ((TEXT_A, 0), (TEXT_B, 1))

    def __post_init__(self) -> None:
        for name, texts in (("single", [TEXT_A]), ("pair", [TEXT_A, TEXT_B])):
            placeholders = [token for token, _ in getattr(self, name) if token < 0]
            if placeholders != texts:
                raise UsageError(
                    f"the {name} layout needs the placeholders {texts} once each and in order, got {placeholders}"
                )

    @classmethod
    def from_template(cls, template: TokenTemplate, *, end: int | None = None) -> "SequenceTemplate":
        """Return the sequence template for the template of a tokenizer.

        The token `end` is appended to a layout that ends in a text: "<|endoftext|>" after the documents of GPT-2, which
        has no special tokens in its template.
        """
        return cls(single=_to_layout(template.single, end), pair=_to_layout(template.pair, end))

    @property
    def special_count(self) -> int:
        """Number of special tokens around a single text."""
        return len(self.single) - 1

    @property
    def pair_special_count(self) -> int:
        """Number of special tokens around a pair."""
        return len(self.pair) - 2

    @property
    def has_segments(self) -> bool:
        """True if the single layout has segments other than 0."""
        return any(segment for _, segment in self.single)

    def wrap(self, start: Ints, length: Ints) -> "SequencePieces":
        """Return the pieces of texts in the single layout, given their positions in the shards."""
        return self._fill(self.single, {TEXT_A: (start, length)})

    def wrap_pair(self, start: Ints, length: Ints, second_start: Ints, second_length: Ints) -> "SequencePieces":
        """Return the pieces of pairs in the pair layout; a pair with an empty second text has the single layout."""
        texts = {TEXT_A: (start, length), TEXT_B: (second_start, second_length)}
        singles, pairs = self._fill(self.single, texts), self._fill(self.pair, texts)
        single_rows = np.flatnonzero(second_length == 0)
        return pairs.replace_at(single_rows, singles.take(single_rows)) if len(single_rows) else pairs

    def _fill(self, layout: tuple[tuple[int, int], ...], texts: dict[int, tuple[Ints, Ints]]) -> "SequencePieces":
        """Return the pieces of S sequences in one layout; `texts` has start and length of each placeholder."""
        count = len(texts[TEXT_A][0])
        start, length = np.empty((count, len(layout)), dtype=np.int64), np.ones((count, len(layout)), dtype=np.int64)
        for column, (token, _) in enumerate(layout):
            start[:, column] = token if token >= 0 else texts[token][0]
            if token < 0:
                length[:, column] = texts[token][1]
        return SequencePieces(
            counts=np.full(count, len(layout)),
            start=start.ravel(),
            length=length.ravel(),
            special=np.tile([token >= 0 for token, _ in layout], count),
            segment=np.tile(np.array([segment for _, segment in layout]), count),
        )


def _to_layout(parts: tuple[SpecialPart | TextPart, ...], end: int | None) -> tuple[tuple[int, int], ...]:
    """Return the parts as (token id, segment), with `end` appended if the last part is a text."""
    texts = {"a": TEXT_A, "b": TEXT_B}
    layout = tuple((part.token if isinstance(part, SpecialPart) else texts[part.text], part.segment) for part in parts)
    last, segment = layout[-1]
    return layout if end is None or last >= 0 else (*layout, (end, segment))


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePieces:
    """Pieces of S sequences: ranges of the shards and single special tokens."""

    counts: Ints  # [S] number of pieces of each sequence
    start: Ints  # [P] position in the shards, or id of the special token
    length: Ints  # [P] may be 0
    special: Bools  # [P] True for a special token
    segment: Ints  # [P]

    def take(self, selection: Ints) -> "SequencePieces":
        """Return the pieces of the selected sequences."""
        index = spread(compute_starts(self.counts)[selection], self.counts[selection])
        return SequencePieces(
            counts=self.counts[selection],
            start=self.start[index],
            length=self.length[index],
            special=self.special[index],
            segment=self.segment[index],
        )

    def replace_at(self, selection: Ints, replacements: "SequencePieces") -> "SequencePieces":
        """Return the pieces with those of the selected sequences replaced."""
        pieces = SequencePieces(
            counts=np.concatenate((self.counts, replacements.counts)),
            start=np.concatenate((self.start, replacements.start)),
            length=np.concatenate((self.length, replacements.length)),
            special=np.concatenate((self.special, replacements.special)),
            segment=np.concatenate((self.segment, replacements.segment)),
        )
        index = np.arange(len(self.counts))
        index[selection] = len(self.counts) + np.arange(len(selection))
        return pieces.take(index)

    def read(
        self, shards: Shards, *, words: bool = False, sentences: bool = False, segments: bool = False
    ) -> Sequences:
        """Read the tokens from the shards, with word starts, sentence starts and segments on request."""
        special = np.repeat(self.special, self.length)
        texts = ~self.special & (self.length > 0)
        start, length = self.start[texts], self.length[texts]
        tokens = np.repeat(self.start, self.length)
        tokens[~special] = shards.take(start, length)
        first = compute_starts(self.length)
        starts_word = starts_sentence = None
        if words:
            starts_word = special.copy()
            starts_word[~special] = shards.take_words(start, length)
            starts_word[first[texts]] = True
        if sentences:
            starts_sentence = special.copy()
            order = np.argsort(start)  # searching in ascending order is several times as fast
            low, high = np.empty_like(start), np.empty_like(start)
            low[order] = np.searchsorted(shards.sentences, start[order])
            high[order] = np.searchsorted(shards.sentences, (start + length)[order])
            inside = shards.sentences[spread(low, high - low)]  # every sentence start inside a text
            starts_sentence[inside + np.repeat(first[texts] - start, high - low)] = True
            starts_sentence[first[texts]] = True
        ends = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.length)))
        return Sequences(
            tokens=tokens,
            offsets=ends[compute_offsets(self.counts)],
            special=special,
            words=starts_word,
            sentences=starts_sentence,
            segments=np.repeat(self.segment, self.length) if segments else None,
        )
