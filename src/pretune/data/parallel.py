"""Parallel documents: sentences with their translation, or a source with its target.

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
from pretune.data.epoch_order import EpochOrder, SampleLengths
from pretune.data.ragged import Ints, split_windows
from pretune.data.samples import attach_sample_info, compute_text_room, find_sources
from pretune.data.sequence_template import TEXT_A, TEXT_B, SequenceTemplate
from pretune.data.sequences import Sequences
from pretune.data.shards import Shards


@spec
class ParallelPairs:
    """Pairs as the corpus has them, in the frame of a pair, or `apart`: each side in that of a single text.

    Of a bare second side only the end of its frame is read.
    """

    limit: int = 512
    apart: Literal["framed", "bare"] | None = None

    def open(self, shards: Shards, template: SequenceTemplate | None = None) -> "ParallelSamples":
        """The samples of some shards."""
        base_template = template or SequenceTemplate()
        return ParallelSamples(
            self,
            shards,
            base_template if self.apart is None else double_template(base_template, is_bare=self.apart == "bare"),
        )


class _ParallelTable(NamedTuple):
    """Of each sample: its first token, the tokens read of each side (0: it has no second), where the second starts."""

    start: Ints
    first_length: Ints
    second_length: Ints
    second_start: Ints


@dataclass(frozen=True)
class ParallelSamples:
    """Samples that are pairs, or stretches of documents of one side."""

    kind: ParallelPairs
    shards: Shards
    template: SequenceTemplate

    def __post_init__(self) -> None:
        compute_text_room(
            self.kind.limit, max(self.template.special_count, self.template.pair_special_count + 1)
        )  # at least one token on each side

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.shards, self.template)

    def __len__(self) -> int:
        return len(self._table.start)

    @property
    def pair_count(self) -> int:
        """Number of samples that are pairs."""
        return int((self._table.second_length > 0).sum())

    @property
    def trimmed_count(self) -> int:
        """Number of pairs that are trimmed to the limit."""
        sides, lengths = self.shards.sides, np.diff(self.shards.documents)
        return int(((sides > 0) & (lengths > self.kind.limit - self.template.pair_special_count)).sum())

    @property
    def _first_special_count(self) -> int:
        """Special tokens of the first side."""
        special_count = [token for token, _ in self.template.pair].index(TEXT_B) - 1
        return special_count if self.kind.apart is None else self.template.special_count

    @cached_property
    def _table(self) -> _ParallelTable:
        starts, sides = self.shards.documents[:-1], self.shards.sides
        lengths = np.diff(self.shards.documents)
        # A pair is one window, of whatever length; others are cut as documents are.
        window_lengths = np.where(sides > 0, np.minimum(lengths, 1), lengths)
        start, length, owner = split_windows(
            starts, window_lengths, compute_text_room(self.kind.limit, self.template.special_count)
        )
        first, second = trim_pair(
            sides[owner], (lengths - sides)[owner], compute_text_room(self.kind.limit, self.template.pair_special_count)
        )
        two = sides[owner] > 0
        return _ParallelTable(
            start, np.where(two, first, length), np.where(two, second, 0), np.where(two, start + sides[owner], start)
        )

    @cached_property
    def sources(self) -> Ints:
        """[n] the source of each sample."""
        return find_sources(self.shards, self._table.start)

    def assign_partners(self, draws: EpochOrder) -> EpochOrder:
        """Nothing is left to be drawn."""
        return draws

    def lengths(self, draws: EpochOrder | None = None) -> Ints:
        """Return the length of each draw, or of each sample: both sides together."""
        first, second = self.measure_sides(draws)
        return first + second

    def measure_sides(self, draws: EpochOrder | None = None) -> tuple[Ints, Ints]:
        """Return the lengths of both sides, special tokens included; the second is 0 if there is none."""
        index = slice(None) if draws is None else draws.samples
        first, second = self._table.first_length[index], self._table.second_length[index]
        two, first_special = second > 0, self._first_special_count
        return (
            first + np.where(two, first_special, self.template.special_count),
            np.where(two, second + self.template.pair_special_count - first_special, 0),
        )

    def measure_lengths(self, draws: EpochOrder | None = None) -> SampleLengths:
        """Both sides, in the frame of a pair or of a single text."""
        first, second = self.measure_sides(draws)
        return SampleLengths(
            first, second, np.where(second > 0, self.template.pair_special_count, self.template.special_count)
        )

    def cut(self, draws: EpochOrder, *, words: bool = False, sentences: bool = False) -> Sequences:
        """The sequences of some draws, which know where their second sides begin."""
        start, first, second, second_start = (column[draws.samples] for column in self._table)
        segments = self.template.has_segments or self.kind.apart is None
        pieces = self.template.wrap_pair(start, first, second_start, second)
        sequences = pieces.read(self.shards, words=words, sentences=sentences, segments=segments)
        begin = np.where(second > 0, self.measure_sides(draws)[0], 0)
        return attach_sample_info(replace(sequences, sides=begin), draws, self.sources)


def double_template(template: SequenceTemplate, *, is_bare: bool) -> SequenceTemplate:
    """A frame whose pair is two single texts, or one and the rest of another."""
    second = [(TEXT_B if token == TEXT_A else token, segment) for token, segment in template.single]
    opening = [token for token, _ in second].index(TEXT_B) if is_bare else 0
    return SequenceTemplate(single=template.single, pair=(*template.single, *second[opening:]))


def trim_pair(first: Ints, second: Ints, limit: int) -> tuple[Ints, Ints]:
    """Trim two sides to `limit` tokens together, the longer one first; returns their lengths.

    >>> [side.tolist() for side in trim_pair(np.array([3, 9, 9, 2]), np.array([4, 2, 9, 9]), 9)]
    [[3, 7, 5, 2], [4, 2, 4, 7]]
    """
    half = limit // 2
    second_length = np.minimum(second, np.maximum(limit - first, half))
    return np.minimum(first, limit - second_length), second_length
