"""Parallel documents: sentences with their translations, or sources with their targets.

    samples = ParallelPairs(limit=512).open(shards, template)   # "[CLS] a [SEP] b [SEP]"
    samples = ParallelPairs(limit=512, apart="framed").open(…)  # "<s> a </s>" and "<s> b </s>": two single texts
    samples = ParallelPairs(limit=512, apart="bare").open(…)    # "<s> a </s>" and "b </s>": no opening tokens before b
    samples.cut(draws).sides                                    # [S] start of the second side in each sequence

A pair is one sample with a known boundary between its sides. A pair over the limit loses the ends of its sides, the
longer side first; each side may keep half of the limit. Text never moves to the other side or into another pair. A
corpus may also contain documents with one side, which are split like `Documents`.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from pretune.core.config import spec
from pretune.data.counters import EpochOrder, SampleLengths
from pretune.data.samples import Samples, compute_text_room
from pretune.data.sequences import Ints, Sequences, split_windows
from pretune.data.shards import Shards
from pretune.text.template import TEXT_A, TEXT_B, TokenTemplate


@spec
class ParallelPairs:
    """Pairs of the corpus, in the pair layout of the template.

    With `apart` each side has the single layout instead: complete ("framed"), or without the opening special tokens of
    the second side ("bare").
    """

    limit: int = 512
    apart: Literal["framed", "bare"] | None = None

    def open(self, shards: Shards, template: TokenTemplate | None = None) -> "ParallelSamples":
        """Return the samples of `shards`, in the layouts of `template` (default: no special tokens).

        Raises `UsageError` if the special tokens leave too little room.
        """
        base_template = template or TokenTemplate()
        return ParallelSamples(
            self,
            shards,
            base_template if self.apart is None else double_template(base_template, is_bare=self.apart == "bare"),
        )


class _ParallelTable(NamedTuple):
    """Start, trimmed lengths of both sides (second: 0 if there is none) and start of the second side per sample."""

    start: Ints
    first_length: Ints
    second_length: Ints
    second_start: Ints


@dataclass(frozen=True)
class ParallelSamples(Samples):
    """Samples of `ParallelPairs`: pairs, or windows of documents with one side."""

    kind: ParallelPairs

    def __post_init__(self) -> None:
        special_count = max(self.template.special_count, self.template.pair_special_count + 1)
        compute_text_room(self.kind.limit, special_count)  # at least one token on each side

    @property
    def pair_count(self) -> int:
        """Number of samples with two sides."""
        return int((self._table.second_length > 0).sum())

    @property
    def trimmed_count(self) -> int:
        """Number of pairs over the limit, which are trimmed."""
        sides, lengths = self.shards.sides, np.diff(self.shards.documents)
        return int(((sides > 0) & (lengths > self.kind.limit - self.template.pair_special_count)).sum())

    @property
    def _first_special_count(self) -> int:
        """Number of special tokens on the first side of a pair."""
        special_count = [token for token, _ in self.template.pair].index(TEXT_B) - 1
        return special_count if self.kind.apart is None else self.template.special_count

    @cached_property
    def _table(self) -> _ParallelTable:
        starts, sides = self.shards.documents[:-1], self.shards.sides
        lengths = np.diff(self.shards.documents)
        # A pair is one window of any length; a document with one side is split into windows.
        window_lengths = np.where(sides > 0, np.minimum(lengths, 1), lengths)
        start, length, owner = split_windows(
            starts, window_lengths, compute_text_room(self.kind.limit, self.template.special_count)
        )
        first, second = trim_pair(
            sides[owner], (lengths - sides)[owner], compute_text_room(self.kind.limit, self.template.pair_special_count)
        )
        is_pair = sides[owner] > 0
        return _ParallelTable(
            start,
            np.where(is_pair, first, length),
            np.where(is_pair, second, 0),
            np.where(is_pair, start + sides[owner], start),
        )

    def measure_lengths(self, draws: EpochOrder | None = None) -> SampleLengths:
        index = slice(None) if draws is None else draws.samples
        first, second = self._table.first_length[index], self._table.second_length[index]
        first_special, special = self._first_special_count, self.template.pair_special_count
        is_pair = second > 0
        return SampleLengths(
            first + np.where(is_pair, first_special, self.template.special_count),
            np.where(is_pair, second + special - first_special, 0),
            np.where(is_pair, special, self.template.special_count),
        )

    def cut(self, draws: EpochOrder, *, words: bool = False, sentences: bool = False) -> Sequences:
        """Read the sequences of draws, with the start of the second side in `sides`; words and sentences on request."""
        start, first, second, second_start = (column[draws.samples] for column in self._table)
        segments = self.template.has_segments or self.kind.apart is None
        pieces = self.template.wrap_pair(start, first, second_start, second)
        sequences = self._read(draws, pieces, words=words, sentences=sentences, segments=segments)
        return replace(sequences, sides=np.where(second > 0, self.measure_lengths(draws).first_lengths, 0))


def double_template(template: TokenTemplate, *, is_bare: bool) -> TokenTemplate:
    """Return a template with a pair layout of two single layouts; `is_bare` omits the opening tokens of the second."""
    second = [(TEXT_B if token == TEXT_A else token, segment) for token, segment in template.single]
    opening = len(template.prefix) if is_bare else 0
    return TokenTemplate(single=template.single, pair=(*template.single, *second[opening:]))


def trim_pair(first: Ints, second: Ints, limit: int) -> tuple[Ints, Ints]:
    """Return the lengths of both sides after trimming to `limit` tokens in total, the longer side first.

    >>> [side.tolist() for side in trim_pair(np.array([3, 9, 9, 2]), np.array([4, 2, 9, 9]), 9)]
    [[3, 7, 5, 2], [4, 2, 4, 7]]
    """
    half = limit // 2
    second_length = np.minimum(second, np.maximum(limit - first, half))
    return np.minimum(first, limit - second_length), second_length
