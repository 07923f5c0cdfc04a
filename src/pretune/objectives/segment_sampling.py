"""Choosing tokens, words and spans by chance, in all sequences at once and without a loop over them.

Items lie end to end in groups of given sizes: the tokens or the words of each sequence. What is chosen in one group
depends on its own random bits alone, so it stays the same whatever else is in the batch.

    index, sizes = ordinary(sequences)                                 # the tokens that may be corrupted
    counts = rounded(0.15 * sizes, rng.uniform(0))                     # [S] as many as that on average
    index[some(rng.bits(1, sizes), sizes, counts)]                     # [K] so many of each sequence

Legend: G groups, n items in all, S sequences, T tokens, W words.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.core.seed import extend_mix
from pretune.data.counters import Counters
from pretune.data.ragged import Bools, Ints, compute_offsets, compute_starts, split_windows, spread
from pretune.data.sequences import Sequences

Bits = NDArray[np.uint64]
Floats = NDArray[np.floating[Any]]

_PLACE, _KEY = 20, 24
"""Bits of a sorting key: group, random key, place. NOTE: a changed number changes what is drawn in every run."""


def round_randomly(expected: Floats, chance: Floats) -> Ints:
    """[G] whole numbers that are as expected on average, and never further than 1 from it.

    >>> round_randomly(np.array([1.25, 1.25]), np.array([0.3, 0.2])).tolist()
    [1, 2]
    """
    down = np.floor(expected)
    return np.asarray(down + (chance < expected - down), dtype=np.int64)  # NOTE: 5 + 0.99… may round up to 6


def shuffle_groups(bits: Bits, sizes: Ints) -> Ints:
    """[n] the numbers of all items, group after group, those of each group in the order of their random bits.

    >>> shuffle_groups(np.array([3, 1, 2, 9, 8], dtype=np.uint64) << np.uint64(60), np.array([3, 2])).tolist()
    [1, 2, 0, 4, 3]
    """
    first = np.repeat(compute_starts(sizes), sizes)
    place = np.arange(len(bits)) - first
    key = bits >> np.uint64(64 - _KEY)
    if max(len(sizes), int(sizes.max(initial=0))) > 2**_PLACE:  # too many for one number: the same order, but slower
        return np.lexsort((place, key, first))
    group = np.arange(len(sizes), dtype=np.uint64) << np.uint64(_PLACE + _KEY)
    keys = np.repeat(group, sizes)
    keys |= key << np.uint64(_PLACE)
    keys |= place.view(np.uint64)
    keys.sort()  # all differ, so it need not be stable; the place says which item it was
    keys &= np.uint64(2**_PLACE - 1)
    return first + keys.view(np.int64)


def sample_k(bits: Bits, sizes: Ints, counts: Ints) -> Ints:
    """[K] the numbers of `counts[g]` items of each group, which differ; in random order inside a group."""
    low = _find_candidates(bits, sizes, counts)
    index, left = np.flatnonzero(low), sum_groups(low, compute_offsets(sizes))
    chosen: Ints = index[take_first(shuffle_groups(bits[index], left), left, counts)]
    return chosen


def _find_candidates(bits: Bits, sizes: Ints, counts: Ints) -> Bools:
    """[n] the items that may be among the first so many of their group: sorting a third of them is faster than all.

    Those have low bits: as a rule, no higher than four deviations above their share. Where that is too few, all are in.
    """
    room = np.maximum(sizes, 1)
    share = counts / room
    bound = share + 4 * np.sqrt(share / room) + 4 / room
    low = bits < np.repeat(np.minimum(bound * 2.0**64, 2.0**64 - 2.0**12).astype(np.uint64), sizes)
    few = sum_groups(low, compute_offsets(sizes)) < counts
    return low | np.repeat(few, sizes) if few.any() else low


def take_first(items: NDArray[Any], sizes: Ints, counts: Ints) -> NDArray[Any]:
    """The first `counts[g]` items of each group."""
    return items[spread(compute_starts(sizes), counts)]


def index_to_mask(index: Ints, size: int) -> Bools:
    """[size] True at some numbers."""
    out = np.zeros(size, dtype=np.bool_)
    out[index] = True
    return out


def sum_groups(values: NDArray[Any], offsets: Ints) -> Ints:
    """[G] the sum of the values of each group, which lies between its offset and the next; groups may be empty."""
    return np.diff(compute_offsets(values)[offsets])


def exclusive_cumsum(values: Ints, sizes: Ints) -> Ints:
    """[n] the sum of the values before each item in its group.

    >>> exclusive_cumsum(np.array([2, 3, 4, 1, 5]), np.array([3, 2])).tolist()
    [0, 2, 5, 0, 1]
    """
    ends = compute_offsets(values)
    return ends[:-1] - np.repeat(ends[compute_starts(sizes)], sizes)


def fill_budget(weights: Ints, sizes: Ints, budget: Floats, chance: Floats) -> Bools:
    """[n] which items, taken in order, fill each group's budget.

    The item that would exceed it is taken with the probability that makes the sum of the weights equal to the budget on
    average; those after it are not.

    >>> fill_budget(np.array([2, 4, 1]), np.array([3]), np.array([3.0]), np.array([0.1])).tolist()
    [True, True, False]
    """
    rest = np.repeat(budget, sizes) - exclusive_cumsum(weights, sizes)
    return rest > np.repeat(chance, sizes) * weights


def draw_bits_at(rng: Counters, use: int, sequences: Sequences, index: Ints) -> Bits:
    """[K] 64 random bits for tokens at some places: `rng.bits(use, sequences.lengths)[index]`, and no others."""
    owner = sequences.find_owners()[index]
    return extend_mix(rng.bits(use)[owner], index - sequences.offsets[owner])


def find_ordinary_tokens(sequences: Sequences) -> tuple[Ints, Ints]:
    """The tokens that may be corrupted: their places [E] in the flat array, and how many each sequence has [S]."""
    if sequences.special is None:
        return np.arange(len(sequences.tokens)), sequences.lengths
    free = ~sequences.special
    return np.flatnonzero(free), sum_groups(free, sequences.offsets)


@dataclass(frozen=True, slots=True)
class WordSpans:
    """The words of all sequences, special tokens left out."""

    start: Ints  # [W] place of the first token in the flat array
    length: Ints  # [W] in tokens
    sizes: Ints  # [S] words of each sequence

    @classmethod
    def from_sequences(cls, sequences: Sequences, *, max_length: int | None = None) -> "WordSpans":
        """Those of some sequences; one of more than `longest` tokens counts as several."""
        if sequences.words is None:
            raise UsageError("these sequences do not say where words start; open their stream with words=True")
        first = np.flatnonzero(sequences.words)
        length = np.diff(np.append(first, len(sequences.tokens)))
        free = np.ones(len(first), dtype=np.bool_) if sequences.special is None else ~sequences.special[first]
        if max_length is not None and (length > max_length).any():
            return cls._from_arrays(*split_windows(first[free], length[free], max_length)[:2], sequences.offsets)
        return cls._from_arrays(first[free], length[free], sequences.offsets)

    @classmethod
    def _from_arrays(cls, start: Ints, length: Ints, offsets: Ints) -> "WordSpans":
        return cls(start, length, np.diff(np.searchsorted(start, offsets)))

    def count_tokens(self) -> Ints:
        """[S] ordinary tokens of each sequence."""
        return sum_groups(self.length, compute_offsets(self.sizes))

    def take(self, selection: Ints) -> Ints:
        """[K] the places of all tokens of some words."""
        return spread(self.start[selection], self.length[selection])
