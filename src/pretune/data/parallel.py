"""Documents of two sides: parallel sentences, or a source and what is to be written for it; each side kept as it is.

    samples = Sides(limit=512).open(shards, frame)              # "[CLS] a [SEP] b [SEP]"
    samples = Sides(limit=512, apart="framed").open(…)          # "<s> a </s>" and "<s> b </s>": each in its own frame
    samples = Sides(limit=512, apart="bare").open(…)            # "<s> a </s>" and "b </s>": one starts, both end
    samples.cut(draws).sides                                    # [S] where in each sequence the second side begins

A pair is one sample, cut exactly where its second side starts. Where it is too long, the ends of its sides are left
out, of the longer one first: both may keep half of the limit. Nothing ever crosses from one side to the other, or into
another pair. Documents of one side may stand beside pairs: they are read as `Documents` are.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from pretune.core.config import spec
from pretune.data.epoch_order import Draws, Known
from pretune.data.ragged import Ints, windows
from pretune.data.samples import inner, marked, sources_at
from pretune.data.sequence_template import A, B, Frame
from pretune.data.sequences import Sequences
from pretune.data.shards import Shards


@spec
class Sides:
    """Pairs as the corpus has them, in the frame of a pair, or `apart`: each side in that of a single text.

    Of a bare second side only the end of its frame is read.
    """

    limit: int = 512
    apart: Literal["framed", "bare"] | None = None

    def open(self, shards: Shards, frame: Frame | None = None) -> "Sided":
        """The samples of some shards."""
        around = frame or Frame()
        return Sided(self, shards, around if self.apart is None else twice(around, bare=self.apart == "bare"))


class _Table(NamedTuple):
    """Of each sample: its first token, the tokens read of each side (0: it has no second), where the second starts."""

    start: Ints
    first: Ints
    second: Ints
    other: Ints


@dataclass(frozen=True)
class Sided:
    """Samples that are pairs, or stretches of documents of one side."""

    kind: Sides
    shards: Shards
    frame: Frame

    def __post_init__(self) -> None:
        inner(self.kind.limit, max(self.frame.room, self.frame.pair_room + 1))  # at least one token on each side

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.shards, self.frame)

    def __len__(self) -> int:
        return len(self._table.start)

    @property
    def pairs(self) -> int:
        """How many samples are pairs."""
        return int((self._table.second > 0).sum())

    @property
    def trimmed(self) -> int:
        """How many pairs are too long, so that not all of them is read."""
        sides, lengths = self.shards.sides, np.diff(self.shards.documents)
        return int(((sides > 0) & (lengths > self.kind.limit - self.frame.pair_room)).sum())

    @property
    def _ahead(self) -> int:
        """Special tokens of the first side."""
        before = [token for token, _ in self.frame.pair].index(B) - 1
        return before if self.kind.apart is None else self.frame.room

    @cached_property
    def _table(self) -> _Table:
        starts, sides = self.shards.documents[:-1], self.shards.sides
        lengths = np.diff(self.shards.documents)
        # A pair is one window, of whatever length; others are cut as documents are.
        one = np.where(sides > 0, np.minimum(lengths, 1), lengths)
        start, length, owner = windows(starts, one, inner(self.kind.limit, self.frame.room))
        first, second = trimmed(sides[owner], (lengths - sides)[owner], inner(self.kind.limit, self.frame.pair_room))
        two = sides[owner] > 0
        return _Table(
            start, np.where(two, first, length), np.where(two, second, 0), np.where(two, start + sides[owner], start)
        )

    @cached_property
    def sources(self) -> Ints:
        """[n] the source of each sample."""
        return sources_at(self.shards, self._table.start)

    def settle(self, draws: Draws) -> Draws:
        """Nothing is left to be drawn."""
        return draws

    def lengths(self, draws: Draws | None = None) -> Ints:
        """How long each draw is, or each sample: both sides together."""
        first, second = self.sides(draws)
        return first + second

    def sides(self, draws: Draws | None = None) -> tuple[Ints, Ints]:
        """How long the sides of each are, special tokens included; the second is 0 where there is none."""
        which = slice(None) if draws is None else draws.samples
        first, second = self._table.first[which], self._table.second[which]
        two, ahead = second > 0, self._ahead
        return (
            first + np.where(two, ahead, self.frame.room),
            np.where(two, second + self.frame.pair_room - ahead, 0),
        )

    def known(self, draws: Draws | None = None) -> Known:
        """Both sides, in the frame of a pair or of a single text."""
        first, second = self.sides(draws)
        return Known(first, second, np.where(second > 0, self.frame.pair_room, self.frame.room))

    def cut(self, draws: Draws, *, words: bool = False, sentences: bool = False) -> Sequences:
        """The sequences of some draws, which know where their second sides begin."""
        start, first, second, other = (column[draws.samples] for column in self._table)
        segments = self.frame.segmented or self.kind.apart is None
        pieces = self.frame.around_two(start, first, other, second)
        made = pieces.read(self.shards, words=words, sentences=sentences, segments=segments)
        begin = np.where(second > 0, self.sides(draws)[0], 0)
        return marked(replace(made, sides=begin), draws, self.sources)


def twice(frame: Frame, *, bare: bool) -> Frame:
    """A frame whose pair is two single texts, or one and the rest of another."""
    second = [(B if token == A else token, segment) for token, segment in frame.single]
    opening = [token for token, _ in second].index(B) if bare else 0
    return Frame(single=frame.single, pair=(*frame.single, *second[opening:]))


def trimmed(first: Ints, second: Ints, limit: int) -> tuple[Ints, Ints]:
    """What is read of two sides where both together may have `limit` tokens: the longer one gives way first.

    >>> [side.tolist() for side in trimmed(np.array([3, 9, 9, 2]), np.array([4, 2, 9, 9]), 9)]
    [[3, 7, 5, 2], [4, 2, 4, 7]]
    """
    half = limit // 2
    kept = np.minimum(second, np.maximum(limit - first, half))
    return np.minimum(first, limit - kept), kept
