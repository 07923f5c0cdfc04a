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
from pretune.core.types import IGNORE_INDEX
from pretune.data.counters import Purpose, derive_keys, to_uniform
from pretune.data.epoch_order import EpochOrder, SampleLengths
from pretune.data.ragged import Ints, split_windows
from pretune.data.samples import attach_sample_info, compute_text_room, find_sources
from pretune.data.sequence_template import SequenceTemplate
from pretune.data.sequences import Sequences
from pretune.data.shards import Shards

INTACT_LABEL, BROKEN_LABEL = 0, 1
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
            raise UsageError(f"share of negative pairs must be between 0 and 1, got {self.share}")

    def open(self, shards: Shards, template: SequenceTemplate | None = None) -> "SegmentPairSamples":
        """The samples of some shards."""
        return SegmentPairSamples(self, shards, template or SequenceTemplate())


class _PairTable(NamedTuple):
    """Of each sample: its first token, the lengths of its segments (0: there is no second), and its document."""

    start: Ints
    first_length: Ints
    second_length: Ints
    document: Ints


@dataclass(frozen=True)
class SegmentPairSamples:
    """Samples that are pairs of neighbouring segments."""

    kind: SegmentPairs
    shards: Shards
    template: SequenceTemplate

    def __post_init__(self) -> None:
        compute_text_room(self.kind.limit, self._room + 1)  # at least one token on each side
        if self.kind.broken == "other" and self.kind.share > 0 and len(self):
            documents = self._table.document[self._table.second_length > 0]
            if len(documents) and (documents == documents[0]).all():
                raise DataError(
                    f"{self.shards.directory}: next-sentence pairs need at least 2 documents, found 1; "
                    "add documents, or train with --objective masked"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.shards, self.template)

    def __len__(self) -> int:
        return len(self._table.start)

    @property
    def pair_count(self) -> int:
        """Number of samples with two segments; the others are single sentences."""
        return int((self._table.second_length > 0).sum())

    @property
    def _room(self) -> int:
        return max(self.template.special_count, self.template.pair_special_count)

    @cached_property
    def _table(self) -> _PairTable:
        offsets = self.shards.documents
        start, length, document = split_windows(
            offsets[:-1], np.diff(offsets), compute_text_room(self.kind.limit, self._room)
        )
        first = _find_middle_sentences(self.shards.sentences, start, length)
        return _PairTable(start, first, length - first, document)

    @cached_property
    def sources(self) -> Ints:
        """[n] the source of each sample's first segment."""
        return find_sources(self.shards, self._table.start)

    def lengths(self, draws: EpochOrder | None = None) -> Ints:
        """Return the length of each draw, or of each sample; exchanged segments are equally long."""
        index = slice(None) if draws is None else draws.samples
        second = self._table.second_length[index]
        return (
            self._table.first_length[index]
            + second
            + np.where(second > 0, self.template.pair_special_count, self.template.special_count)
        )

    def measure_lengths(self, draws: EpochOrder | None = None) -> SampleLengths:
        """Of two segments as one sequence, in the frame of a pair."""
        lengths, second = (
            self.lengths(draws),
            self._table.second_length[slice(None) if draws is None else draws.samples],
        )
        special = np.where(second > 0, self.template.pair_special_count, self.template.special_count)
        return SampleLengths(lengths, np.zeros_like(lengths), special)

    def assign_partners(self, draws: EpochOrder) -> EpochOrder:
        """Draw which pairs are broken, and from where each of those takes its second segment."""
        is_pair = self._table.second_length[draws.samples] > 0
        seconds, is_broken = draws.samples, np.zeros(len(draws), dtype=bool)
        if self.kind.broken == "other":
            seconds = draws.samples.copy()
            for takers, givers in self._iter_exchanges(draws, np.flatnonzero(is_pair)):
                seconds[takers] = draws.samples[givers]
                is_broken[takers] = True
        else:
            is_broken = is_pair & (
                to_uniform(derive_keys(draws.seed, Purpose.BROKEN_PAIR, draws.epochs, draws.samples)) < self.kind.share
            )
        return replace(
            draws,
            partners=seconds,
            labels=np.where(is_pair, np.where(is_broken, BROKEN_LABEL, INTACT_LABEL), IGNORE_INDEX),
        )

    def cut(self, draws: EpochOrder, *, words: bool = False, sentences: bool = False) -> Sequences:
        """The sequences of settled draws."""
        if draws.partners is None or draws.labels is None:
            raise UsageError("the draws have no partners; call assign_partners first")
        table, samples, partners = self._table, draws.samples, draws.partners
        first, second = (
            (table.start[samples], table.first_length[samples]),
            (table.start + table.first_length, table.second_length),
        )
        swap = (draws.labels == BROKEN_LABEL) & (self.kind.broken == "swapped")
        pieces = self.template.wrap_pair(
            np.where(swap, second[0][partners], first[0]),
            np.where(swap, second[1][partners], first[1]),
            np.where(swap, first[0], second[0][partners]),
            np.where(swap, first[1], second[1][partners]),
        )
        return attach_sample_info(
            pieces.read(self.shards, words=words, sentences=sentences, segments=True), draws, self.sources
        )

    def _iter_exchanges(self, draws: EpochOrder, pairs: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield the draws that exchange second segments: takers and givers, for each segment length."""
        keys = derive_keys(draws.seed, Purpose.BROKEN_PAIR, draws.epochs[pairs], draws.samples[pairs])
        second = self._table.second_length[draws.samples[pairs]]
        order = np.lexsort((keys, second))  # by length, those of a length by chance
        lengths, starts = np.unique(second[order], return_index=True)
        for length, (start, end) in zip(lengths.tolist(), pairwise([*starts.tolist(), len(order)]), strict=True):
            key, alike = mix(draws.seed, Purpose.ROTATION, draws.round, length), pairs[order[start:end]]
            yield self._exchange(draws, alike[: _draw_count(self.kind.share * len(alike), key)], key)

    def _exchange(self, draws: EpochOrder, candidates: Ints, key: int) -> tuple[Ints, Ints]:
        """Draws, and as many of the same in another order, so that no two at one place are from one document.

        Sorted by document they are arcs of a circle. Turned by at least the longest arc, and by as much less than a
        full turn, each lands outside its own. Where one document has more than half of them, it keeps what is too many.
        """
        document = self._table.document[draws.samples[candidates]]
        _, names, counts = np.unique(document, return_inverse=True, return_counts=True)
        longest = int(counts.max(initial=0))
        excess = max(2 * longest - len(candidates), 0)
        if excess:
            rest = np.delete(np.arange(len(candidates)), np.flatnonzero(names == counts.argmax())[:excess])
            candidates, document, longest = candidates[rest], document[rest], longest - excess
        keys = derive_keys(draws.seed, Purpose.PARTNER, np.full(len(candidates), draws.round), document)
        circle = candidates[np.argsort(keys, kind="stable")]
        return circle, np.roll(circle, -longest - key % (len(circle) - 2 * longest + 1))


def _draw_count(mean: float, key: int) -> int:
    """A whole number drawn so that its mean is as expected, but not 1, for it takes two to exchange."""
    chance = key / 2**64
    return int(mean + chance) if mean >= 2 else 2 * (chance < mean / 2)


def _find_middle_sentences(sentences: Ints, start: Ints, length: Ints) -> Ints:
    """Return the offset of the sentence start nearest to the middle of each window; its length if there is none."""
    middle, end = start + length / 2, start + length
    index = np.searchsorted(sentences, middle)
    bounds = np.concatenate(([-1], sentences, [np.iinfo(np.int64).max]))  # something before, something after
    low, high = bounds[index], bounds[index + 1]
    low_gap = np.where(low > start, middle - low, np.inf)
    high_gap = np.where(high < end, high - middle, np.inf)
    nearest = np.where(low_gap <= high_gap, low, high)
    return np.where(np.minimum(low_gap, high_gap) < np.inf, nearest - start, length)
