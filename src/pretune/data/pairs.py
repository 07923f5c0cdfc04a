"""Pairs: segments for next-sentence prediction (BERT) and sentence order (ALBERT, Lan et al., 2020), parallel text.

Segments: a document is split into windows that fill the limit. Each window is split into two segments at the sentence
start nearest to its middle. A window inside a single sentence stays one segment and has no label.

For next-sentence prediction about half of the pairs are broken in every epoch. Broken pairs exchange their second
segments, always of equal length and never within a document. So every sample keeps its length, and every token is read
exactly once per epoch. BERT's original data samples second segments independently: it repeats some text, omits some,
and truncates long pairs.

Parallel documents, sentences with their translations or sources with their targets:

    samples = ParallelPairs(limit=512).open(shards, template)   # "[CLS] a [SEP] b [SEP]"
    samples = ParallelPairs(limit=512, apart="framed").open(…)  # "<s> a </s>" and "<s> b </s>": two single texts
    samples = ParallelPairs(limit=512, apart="bare").open(…)    # "<s> a </s>" and "b </s>": no opening tokens before b
    samples.cut(draws).sides                                    # [S] start of the second side in each sequence

A pair is one sample with a known boundary between its sides. A pair over the limit loses the ends of its sides, the
longer side first; each side may keep half of the limit. Text never moves to the other side or into another pair. A
corpus may also contain documents with one side, which are split like `Documents`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from pretune.core.config import Fraction, spec
from pretune.core.errors import DataError, UsageError
from pretune.core.seed import mix
from pretune.core.types import IGNORE_INDEX
from pretune.data.samples import Samples, compute_text_room
from pretune.data.sampling import EpochOrder, Purpose, SampleLengths, derive_keys, to_uniform
from pretune.data.sequences import Bools, Ints, Sequences, split_windows
from pretune.data.shards import Shards
from pretune.text.template import TEXT_A, TEXT_B, SequencePieces, TokenTemplate

INTACT_LABEL, BROKEN_LABEL = 0, 1
"""Labels of a pair: 0 if the second segment follows the first, 1 if it is from elsewhere or the two are swapped."""


@spec
class SegmentPairs:
    """Pairs of neighbouring segments of about half the limit each; the second segment starts at a sentence.

    `share` is the share of broken pairs, which have the label 1. A broken pair has the second segment of another
    document (`broken="other"`) or its two segments in the wrong order (`broken="swapped"`). Raises `UsageError` if
    `share` is not between 0 and 1.
    """

    limit: int = 512
    broken: Literal["other", "swapped"] = "other"
    share: Fraction = 0.5

    def open(self, shards: Shards, template: TokenTemplate | None = None) -> "SegmentPairSamples":
        """Return the samples of `shards`, in the pair layout of `template` (default: no special tokens).

        Raises `UsageError` if the special tokens leave too little room, and `DataError` if pairs should be broken with
        other documents but all pairs are from one document.
        """
        return SegmentPairSamples(self, shards, template or TokenTemplate())


class _PairTable(NamedTuple):
    """Columns of n samples: start and length of both sides (second length: 0 if there is none), and document."""

    start: Ints
    first_length: Ints
    second_start: Ints
    second_length: Ints
    document: Ints


@dataclass(frozen=True)
class PairSamples(Samples):
    """Base class: samples of two sides, or of a single one."""

    @cached_property
    def _table(self) -> _PairTable:
        raise NotImplementedError

    @property
    def pair_count(self) -> int:
        """Number of samples with two sides; the others have one."""
        return int((self._table.second_length > 0).sum())


@dataclass(frozen=True)
class SegmentPairSamples(PairSamples):
    """Samples of `SegmentPairs`: two neighbouring segments each, or a single one."""

    kind: SegmentPairs

    def __post_init__(self) -> None:
        compute_text_room(self.kind.limit, self._room + 1)  # at least one token on each side
        if self.kind.broken == "other" and self.kind.share > 0 and len(self):
            documents = self._table.document[self._table.second_length > 0]
            if len(documents) and (documents == documents[0]).all():
                raise DataError(
                    f"{self.shards.directory}: next-sentence pairs need at least 2 documents, found 1; "
                    "add documents, or train with --objective masked"
                )

    @property
    def _room(self) -> int:
        """Room for special tokens: the maximum of both layouts."""
        return max(self.template.special_count, self.template.pair_special_count)

    @cached_property
    def _table(self) -> _PairTable:
        offsets = self.shards.documents
        start, length, document = split_windows(
            offsets[:-1], np.diff(offsets), compute_text_room(self.kind.limit, self._room)
        )
        first = _find_middle_sentences(self.shards.sentences, start, length)
        return _PairTable(start, first, start + first, length - first, document)

    def measure_lengths(self, draws: EpochOrder | None = None) -> SampleLengths:
        """Return the lengths and special tokens of each draw, or of each sample; both segments count as one side."""
        index = slice(None) if draws is None else draws.samples  # exchanges do not change the lengths
        second = self._table.second_length[index]
        special = np.where(second > 0, self.template.pair_special_count, self.template.special_count)
        lengths = self._table.first_length[index] + second + special
        return SampleLengths(lengths, np.zeros_like(lengths), special, _find_special_ends(self.template, second > 0))

    def assign_partners(self, draws: EpochOrder) -> EpochOrder:
        """Return the draws with sampled `labels` (broken or intact) and the `partners` that provide second segments."""
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
        labels = np.where(is_pair, np.where(is_broken, BROKEN_LABEL, INTACT_LABEL), IGNORE_INDEX)
        return replace(draws, partners=seconds, labels=labels)

    @property
    def has_segments(self) -> bool:
        return True

    def build_pieces(self, draws: EpochOrder) -> SequencePieces:
        if draws.partners is None or draws.labels is None:
            raise UsageError("the draws have no partners; call assign_partners first")
        table, is_swapped = self._table, (draws.labels == BROKEN_LABEL) & (self.kind.broken == "swapped")
        first = table.start[draws.samples], table.first_length[draws.samples]
        second = table.second_start[draws.partners], table.second_length[draws.partners]
        intact, inverse = (*first, *second), (*second, *first)
        return self.template.wrap_pair(*(np.where(is_swapped, b, a) for a, b in zip(intact, inverse, strict=True)))

    def _iter_exchanges(self, draws: EpochOrder, pairs: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield (takers, givers) for each length of second segments: indices of draws that exchange them."""
        keys = derive_keys(draws.seed, Purpose.BROKEN_PAIR, draws.epochs[pairs], draws.samples[pairs])
        second = self._table.second_length[draws.samples[pairs]]
        order = np.lexsort((keys, second))  # by length, then in random order
        lengths, starts = np.unique(second[order], return_index=True)
        for length, (start, end) in zip(lengths.tolist(), pairwise([*starts.tolist(), len(order)]), strict=True):
            key, candidates = mix(draws.seed, Purpose.ROTATION, draws.round, length), pairs[order[start:end]]
            yield self._exchange(draws, candidates[: _draw_count(self.kind.share * len(candidates), key)], key)

    def _exchange(self, draws: EpochOrder, candidates: Ints, key: int) -> tuple[Ints, Ints]:
        """Return (takers, givers): the candidates in two orders. Taker and giver are never from the same document.

        In the order by document, on a circle, the draws of a document form an arc. A rotation by at least the longest
        arc, and by at most the circle less that arc, moves every draw out of its arc. If one document has more than
        half of the candidates, the excess takes no part and stays intact.
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
    """Return a random integer with the given mean, derived from `key`; never 1, as an exchange needs two draws."""
    uniform = key / 2**64
    return int(mean + uniform) if mean >= 2 else 2 * (uniform < mean / 2)


def _find_middle_sentences(sentences: Ints, start: Ints, length: Ints) -> Ints:
    """Return the offset of the sentence start nearest to the middle of each window; the length if there is none."""
    middle, end = start + length / 2, start + length
    index = np.searchsorted(sentences, middle)
    bounds = np.concatenate(([-1], sentences, [np.iinfo(np.int64).max]))  # sentinels at both ends
    low, high = bounds[index], bounds[index + 1]
    low_gap = np.where(low > start, middle - low, np.inf)
    high_gap = np.where(high < end, high - middle, np.inf)
    nearest = np.where(low_gap <= high_gap, low, high)
    return np.where(np.minimum(low_gap, high_gap) < np.inf, nearest - start, length)


def _find_special_ends(template: TokenTemplate, is_pair: Bools) -> Bools:
    """Return a mask [n] of the samples that end in a special token, by their layout: of a pair, or of one text."""
    return np.where(is_pair, template.pair[-1][0] != TEXT_B, bool(template.suffix))


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
        template = template or TokenTemplate()
        if self.apart is not None:
            template = double_template(template, is_bare=self.apart == "bare")
        return ParallelSamples(self, shards, template)


@dataclass(frozen=True)
class ParallelSamples(PairSamples):
    """Samples of `ParallelPairs`: pairs, or windows of documents with one side."""

    kind: ParallelPairs

    def __post_init__(self) -> None:
        special_count = max(self.template.special_count, self.template.pair_special_count + 1)
        compute_text_room(self.kind.limit, special_count)  # at least one token on each side

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
    def _table(self) -> _PairTable:
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
        first, second = np.where(is_pair, first, length), np.where(is_pair, second, 0)
        return _PairTable(start, first, start + sides[owner], second, owner)

    def measure_lengths(self, draws: EpochOrder | None = None) -> SampleLengths:
        index = slice(None) if draws is None else draws.samples
        first, second = self._table.first_length[index], self._table.second_length[index]
        first_special, special = self._first_special_count, self.template.pair_special_count
        is_pair = second > 0
        return SampleLengths(
            first + np.where(is_pair, first_special, self.template.special_count),
            np.where(is_pair, second + special - first_special, 0),
            np.where(is_pair, special, self.template.special_count),
            _find_special_ends(self.template, is_pair),
        )

    @property
    def has_segments(self) -> bool:
        return self.template.has_segments or self.kind.apart is None

    def build_pieces(self, draws: EpochOrder) -> SequencePieces:
        return self.template.wrap_pair(*(column[draws.samples] for column in self._table[:-1]))

    def cut(self, draws: EpochOrder, *, words: bool = False, sentences: bool = False) -> Sequences:
        """Read the sequences of draws, with the start of the second side in `sides`; words and sentences on request."""
        is_pair = self._table.second_length[draws.samples] > 0
        sides = np.where(is_pair, self.measure_lengths(draws).first_lengths, 0)
        return replace(super().cut(draws, words=words, sentences=sentences), sides=sides)


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
