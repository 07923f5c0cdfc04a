"""Templates: special tokens around one text or two, for one input or for arrays of many.

    TokenTemplate(
        single=((CLS, 0), (TEXT_A, 0), (SEP, 0)),
        pair=((CLS, 0), (TEXT_A, 0), (SEP, 0), (TEXT_B, 1), (SEP, 1)),
    )

is "[CLS] a [SEP]" and "[CLS] a [SEP] b [SEP]" with the second text and its separator in segment 1.

    template.apply([7, 8], [9])             # [CLS] 7 8 [SEP] 9 [SEP], with segments and a mask of special tokens
    template.fit(a, b, length=128)          # truncated first: the longer text loses more
    template.wrap(starts, lengths)          # many ranges of an array of tokens at once

Truncation follows `transformers`, so that a model sees the same tokens in both. Legend: S sequences, P pieces.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pretune.core.config import spec
from pretune.core.errors import UsageError

Ints = NDArray[np.int64]
Layout = tuple[tuple[int, int], ...]
"""Parts of a sequence in order, as (token id, segment)."""

TEXT_A, TEXT_B = -1, -2
"""Placeholders of the first and the second text in a layout."""


class TemplatedTokens(NamedTuple):
    """One model input, [n] each."""

    ids: Ints
    segments: Ints
    is_special: NDArray[np.bool_]  # token of the template, not of a text


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePieces:
    """Pieces of S sequences: ranges of an array of tokens, and single special tokens."""

    counts: Ints  # [S] number of pieces of each sequence
    start: Ints  # [P] position in the array, or id of the special token
    length: Ints  # [P] may be 0
    special: NDArray[np.bool_]  # [P] True for a special token
    segment: Ints  # [P]


@spec
class TokenTemplate:
    """Layouts of one text and of two; `TEXT_A` and `TEXT_B` stand for the texts.

    Raises `UsageError` if a layout does not have its placeholders once each and in order.

    >>> template = TokenTemplate(single=((2, 0), (TEXT_A, 0)), pair=((2, 0), (TEXT_A, 0), (3, 0), (TEXT_B, 1)))
    >>> template.apply([7, 8], [9]).ids.tolist(), template.apply([7, 8], [9]).segments.tolist()
    ([2, 7, 8, 3, 9], [0, 0, 0, 0, 1])
    """

    single: Layout = ((TEXT_A, 0),)
    pair: Layout = ((TEXT_A, 0), (TEXT_B, 1))

    def __post_init__(self) -> None:
        for name, texts in (("single", [TEXT_A]), ("pair", [TEXT_A, TEXT_B])):
            placeholders = [token for token, _ in getattr(self, name) if token < 0]
            if placeholders != texts:
                names = {TEXT_A: "A", TEXT_B: "B"}
                order, stored_order = (
                    " ".join(names.get(text, "?") for text in part) for part in (texts, placeholders)
                )
                raise UsageError(
                    f"the template '{name}' must hold the texts {order} in this order, got {stored_order or 'none'}"
                )

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

    @property
    def prefix(self) -> Layout:
        """Special tokens before a single text."""
        return self.single[: [token for token, _ in self.single].index(TEXT_A)]

    @property
    def suffix(self) -> Layout:
        """Special tokens after a single text."""
        return self.single[len(self.prefix) + 1 :]

    def apply(self, first: ArrayLike, second: ArrayLike | None = None) -> TemplatedTokens:
        """Add special tokens to the tokens of one text or two, without truncation."""
        texts = {TEXT_A: first, TEXT_B: () if second is None else second}
        layout = self.single if second is None else self.pair
        parts = [np.asarray(texts.get(token, [token]), np.int64) for token, _ in layout]
        sizes = [len(part) for part in parts]
        return TemplatedTokens(
            np.concatenate(parts),
            np.repeat([segment for _, segment in layout], sizes),
            np.repeat([token >= 0 for token, _ in layout], sizes),
        )

    def fit(self, first: ArrayLike, second: ArrayLike | None = None, *, length: int) -> TemplatedTokens:
        """Truncate to `length` tokens, special ones included, the longer text first, and apply the template.

        Raises `UsageError` if the special tokens alone are longer.
        """
        first, second = np.asarray(first, np.int64), None if second is None else np.asarray(second, np.int64)
        special_count = self.special_count if second is None else self.pair_special_count
        room = length - special_count
        if room < 0:
            raise UsageError(f"a length of {length} is too short: the template has {special_count} special tokens")
        if second is None:
            return self.apply(first[:room])
        first_kept, second_kept = split_room(np.array(len(first)), np.array(len(second)), room)
        return self.apply(first[:first_kept], second[:second_kept])

    def wrap(self, start: Ints, length: Ints) -> SequencePieces:
        """Return the pieces of texts in the single layout, given their positions in an array of tokens."""
        return _fill(self.single, {TEXT_A: (start, length)})

    def wrap_pair(self, start: Ints, length: Ints, second_start: Ints, second_length: Ints) -> SequencePieces:
        """Return the pieces of pairs in the pair layout; a pair with an empty second text has the single layout."""
        texts = {TEXT_A: (start, length), TEXT_B: (second_start, second_length)}
        is_pair = second_length > 0
        if is_pair.all():
            return _fill(self.pair, texts)
        layouts = ((self.pair, np.flatnonzero(is_pair)), (self.single, np.flatnonzero(~is_pair)))
        parts = [
            _fill(layout, {name: (begin[rows], size[rows]) for name, (begin, size) in texts.items()})
            for layout, rows in layouts
        ]
        order = np.argsort(np.concatenate([np.repeat(rows, len(layout)) for layout, rows in layouts]), kind="stable")
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])[order]
            for name in ("start", "length", "special", "segment")
        }
        return SequencePieces(counts=np.where(is_pair, len(self.pair), len(self.single)), **columns)


def _fill(layout: Layout, texts: dict[int, tuple[Ints, Ints]]) -> SequencePieces:
    """Return the pieces of S sequences in one layout; `texts` has start and length of each placeholder."""
    count = len(texts[TEXT_A][0])
    start, length = np.empty((count, len(layout)), dtype=np.int64), np.ones((count, len(layout)), dtype=np.int64)
    for column, (token, _) in enumerate(layout):
        if token < 0:
            start[:, column], length[:, column] = texts[token]
        else:
            start[:, column] = token
    return SequencePieces(
        counts=np.full(count, len(layout)),
        start=start.ravel(),
        length=length.ravel(),
        special=np.tile([token >= 0 for token, _ in layout], count),
        segment=np.tile(np.array([segment for _, segment in layout]), count),
    )


def split_room(first_lengths: Ints, second_lengths: Ints, room: int) -> tuple[Ints, Ints]:
    """Return the tokens to keep of the first and second text of each pair, truncating the longer one first.

    >>> [part.tolist() for part in split_room(np.array([5, 3]), np.array([2, 9]), 6)]
    [[4, 3], [2, 3]]
    """
    shorter_kept = np.minimum(np.minimum(first_lengths, second_lengths), room // 2)
    longer_kept = np.minimum(room - shorter_kept, first_lengths)
    first_kept = np.where(first_lengths <= second_lengths, shorter_kept, longer_kept)
    return first_kept, np.minimum(room - first_kept, second_lengths)
