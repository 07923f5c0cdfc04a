"""Pairs of segments for next-sentence prediction (BERT) and sentence order (ALBERT, Lan et al., 2020).

A document is cut into windows that fill the limit, and each window into two segments at the start of the sentence
nearest to its middle. A window inside a single sentence stays one segment and has no label.

For next sentences about half of the pairs are broken in every epoch: they exchange their second segments among each
other, within pairs whose second segments are equally long and never within a document. So no sample changes its length,
and every token is still read exactly once per epoch, where BERT's own data draws second segments freely: it reads some
text often, some never, and cuts off what is too long.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.core.seed import mix
from pretune.core.types import IGNORE
from pretune.data.counters import Purpose, keys_of, unit
from pretune.data.epoch_order import Draws, Known
from pretune.data.ragged import Ints, windows
from pretune.data.samples import inner, marked, sources_at
from pretune.data.sequence_template import Frame
from pretune.data.sequences import Sequences
from pretune.data.shards import Shards

NEXT, BROKEN = 0, 1
"""The label of a pair: its second segment follows the first; it is another one, or the two are swapped."""


@spec
class SegmentPairs:
    """Two segments of about half the limit each, the second starting at a sentence: contiguous, or broken with label 1.

    A broken pair takes its second segment from another document ("other"), or has the two swapped ("swapped").
    """

    limit: int = 512
    broken: Literal["other", "swapped"] = "other"
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"the share of broken pairs lies between 0 and 1, found {self.share}")

    def open(self, shards: Shards, frame: Frame | None = None) -> "Pairs":
        """The samples of some shards."""
        return Pairs(self, shards, frame or Frame())


class _Table(NamedTuple):
    """Of each sample: its first token, the lengths of its segments (0: there is no second), and its document."""

    start: Ints
    first: Ints
    second: Ints
    document: Ints


@dataclass(frozen=True)
class Pairs:
    """Samples that are pairs of neighbouring segments."""

    kind: SegmentPairs
    shards: Shards
    frame: Frame

    def __post_init__(self) -> None:
        inner(self.kind.limit, self._room + 1)  # at least one token on each side
        if self.kind.broken == "other" and self.kind.share > 0 and len(self):
            paired = self._table.document[self._table.second > 0]
            if len(paired) and (paired == paired[0]).all():
                raise DataError(
                    f"{self.shards.directory}: next-sentence pairs need text of two documents, found one; "
                    "give more documents, or learn without such pairs (--objective masked)"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.shards, self.frame)

    def __len__(self) -> int:
        return len(self._table.start)

    @property
    def paired(self) -> int:
        """How many samples have two segments: the others are single sentences."""
        return int((self._table.second > 0).sum())

    @property
    def _room(self) -> int:
        return max(self.frame.room, self.frame.pair_room)

    @cached_property
    def _table(self) -> _Table:
        offsets = self.shards.documents
        start, length, document = windows(offsets[:-1], np.diff(offsets), inner(self.kind.limit, self._room))
        first = _nearest_to_middle(self.shards.sentences, start, length)
        return _Table(start, first, length - first, document)

    @cached_property
    def sources(self) -> Ints:
        """[n] the source of each sample's first segment."""
        return sources_at(self.shards, self._table.start)

    def lengths(self, draws: Draws | None = None) -> Ints:
        """How long each draw is, or each sample; whose second segment it reads makes no difference."""
        which = slice(None) if draws is None else draws.samples
        second = self._table.second[which]
        return self._table.first[which] + second + np.where(second > 0, self.frame.pair_room, self.frame.room)

    def known(self, draws: Draws | None = None) -> Known:
        """Of two segments as one sequence, in the frame of a pair."""
        lengths, second = self.lengths(draws), self._table.second[slice(None) if draws is None else draws.samples]
        special = np.where(second > 0, self.frame.pair_room, self.frame.room)
        return Known(lengths, np.zeros_like(lengths), special)

    def settle(self, draws: Draws) -> Draws:
        """Draw which pairs are broken, and from where each of those takes its second segment."""
        paired = self._table.second[draws.samples] > 0
        seconds, broken = draws.samples, np.zeros(len(draws), dtype=bool)
        if self.kind.broken == "other":
            seconds = draws.samples.copy()
            for takers, givers in self._exchanges(draws, np.flatnonzero(paired)):
                seconds[takers] = draws.samples[givers]
                broken[takers] = True
        else:
            broken = paired & (unit(keys_of(draws.seed, Purpose.COIN, draws.epochs, draws.samples)) < self.kind.share)
        return replace(draws, seconds=seconds, labels=np.where(paired, np.where(broken, BROKEN, NEXT), IGNORE))

    def cut(self, draws: Draws, *, words: bool = False, sentences: bool = False) -> Sequences:
        """The sequences of settled draws."""
        if draws.seconds is None or draws.labels is None:
            raise UsageError("these draws have no partners yet; settle them first")
        table, which, others = self._table, draws.samples, draws.seconds
        first, second = (table.start[which], table.first[which]), (table.start + table.first, table.second)
        swap = (draws.labels == BROKEN) & (self.kind.broken == "swapped")
        pieces = self.frame.around_two(
            np.where(swap, second[0][others], first[0]),
            np.where(swap, second[1][others], first[1]),
            np.where(swap, first[0], second[0][others]),
            np.where(swap, first[1], second[1][others]),
        )
        return marked(pieces.read(self.shards, words=words, sentences=sentences, segments=True), draws, self.sources)

    def _exchanges(self, draws: Draws, paired: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Which draws take the second segments of which: some of those with second segments of each length."""
        keys = keys_of(draws.seed, Purpose.COIN, draws.epochs[paired], draws.samples[paired])
        second = self._table.second[draws.samples[paired]]
        order = np.lexsort((keys, second))  # by length, those of a length by chance
        lengths, starts = np.unique(second[order], return_index=True)
        for length, (start, end) in zip(lengths.tolist(), pairwise([*starts.tolist(), len(order)]), strict=True):
            key, alike = mix(draws.seed, Purpose.TURN, draws.round, length), paired[order[start:end]]
            yield self._exchange(draws, alike[: _how_many(self.kind.share * len(alike), key)], key)

    def _exchange(self, draws: Draws, some: Ints, key: int) -> tuple[Ints, Ints]:
        """Draws, and as many of the same in another order, so that no two at one place are from one document.

        Sorted by document they are arcs of a circle. Turned by at least the longest arc, and by as much less than a
        full turn, each lands outside its own. Where one document has more than half of them, it keeps what is too many.
        """
        document = self._table.document[draws.samples[some]]
        _, names, counts = np.unique(document, return_inverse=True, return_counts=True)
        longest = int(counts.max(initial=0))
        excess = max(2 * longest - len(some), 0)
        if excess:
            rest = np.delete(np.arange(len(some)), np.flatnonzero(names == counts.argmax())[:excess])
            some, document, longest = some[rest], document[rest], longest - excess
        mixed = keys_of(draws.seed, Purpose.PARTNER, np.full(len(some), draws.round), document)
        circle = some[np.argsort(mixed, kind="stable")]
        return circle, np.roll(circle, -longest - key % (len(circle) - 2 * longest + 1))


def _how_many(expected: float, key: int) -> int:
    """A whole number drawn so that its mean is as expected, but not 1, for it takes two to exchange."""
    chance = key / 2**64
    return int(expected + chance) if expected >= 2 else 2 * (chance < expected / 2)


def _nearest_to_middle(sentences: Ints, start: Ints, length: Ints) -> Ints:
    """How far into each window the sentence nearest to its middle starts; all of it where none starts inside."""
    middle, end = start + length / 2, start + length
    after = np.searchsorted(sentences, middle)
    padded = np.concatenate(([-1], sentences, [np.iinfo(np.int64).max]))  # something before, something after
    low, high = padded[after], padded[after + 1]
    low_gap = np.where(low > start, middle - low, np.inf)
    high_gap = np.where(high < end, high - middle, np.inf)
    found = np.where(low_gap <= high_gap, low, high)
    return np.where(np.minimum(low_gap, high_gap) < np.inf, found - start, length)
