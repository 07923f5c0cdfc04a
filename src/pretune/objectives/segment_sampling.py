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
from pretune.core.seed import mix_more
from pretune.data.counters import Counters
from pretune.data.ragged import Bools, Ints, begins, bounds, spread, windows
from pretune.data.sequences import Sequences

Bits = NDArray[np.uint64]
Floats = NDArray[np.floating[Any]]

_PLACE, _KEY = 20, 24
"""Bits of a sorting key: group, random key, place. NOTE: a changed number changes what is drawn in every run."""


def rounded(expected: Floats, chance: Floats) -> Ints:
    """[G] whole numbers that are as expected on average, and never further than 1 from it.

    >>> rounded(np.array([1.25, 1.25]), np.array([0.3, 0.2])).tolist()
    [1, 2]
    """
    down = np.floor(expected)
    return np.asarray(down + (chance < expected - down), dtype=np.int64)  # NOTE: 5 + 0.99… may round up to 6


def shuffled(bits: Bits, sizes: Ints) -> Ints:
    """[n] the numbers of all items, group after group, those of each group in the order of their random bits.

    >>> shuffled(np.array([3, 1, 2, 9, 8], dtype=np.uint64) << np.uint64(60), np.array([3, 2])).tolist()
    [1, 2, 0, 4, 3]
    """
    first = np.repeat(begins(sizes), sizes)
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


def some(bits: Bits, sizes: Ints, counts: Ints) -> Ints:
    """[K] the numbers of `counts[g]` items of each group, which differ; in random order inside a group."""
    low = _candidates(bits, sizes, counts)
    index, left = np.flatnonzero(low), totals(low, bounds(sizes))
    chosen: Ints = index[firsts(shuffled(bits[index], left), left, counts)]
    return chosen


def _candidates(bits: Bits, sizes: Ints, counts: Ints) -> Bools:
    """[n] the items that may be among the first so many of their group: sorting a third of them is faster than all.

    Those have low bits: as a rule, no higher than four deviations above their share. Where that is too few, all are in.
    """
    room = np.maximum(sizes, 1)
    share = counts / room
    bound = share + 4 * np.sqrt(share / room) + 4 / room
    low = bits < np.repeat(np.minimum(bound * 2.0**64, 2.0**64 - 2.0**12).astype(np.uint64), sizes)
    few = totals(low, bounds(sizes)) < counts
    return low | np.repeat(few, sizes) if few.any() else low


def firsts(items: NDArray[Any], sizes: Ints, counts: Ints) -> NDArray[Any]:
    """The first `counts[g]` items of each group."""
    return items[spread(begins(sizes), counts)]


def marks(index: Ints, size: int) -> Bools:
    """[size] True at some numbers."""
    out = np.zeros(size, dtype=np.bool_)
    out[index] = True
    return out


def totals(values: NDArray[Any], offsets: Ints) -> Ints:
    """[G] the sum of the values of each group, which lies between its offset and the next; groups may be empty."""
    return np.diff(bounds(values)[offsets])


def before(values: Ints, sizes: Ints) -> Ints:
    """[n] the sum of the values before each item in its group.

    >>> before(np.array([2, 3, 4, 1, 5]), np.array([3, 2])).tolist()
    [0, 2, 5, 0, 1]
    """
    ends = bounds(values)
    return ends[:-1] - np.repeat(ends[begins(sizes)], sizes)


def filled(weights: Ints, sizes: Ints, budget: Floats, chance: Floats) -> Bools:
    """[n] which items, taken in order, fill each group's budget.

    The item that would exceed it is taken with the probability that makes the sum of the weights equal to the budget on
    average; those after it are not.

    >>> filled(np.array([2, 4, 1]), np.array([3]), np.array([3.0]), np.array([0.1])).tolist()
    [True, True, False]
    """
    rest = np.repeat(budget, sizes) - before(weights, sizes)
    return rest > np.repeat(chance, sizes) * weights


def bits_at(rng: Counters, use: int, sequences: Sequences, index: Ints) -> Bits:
    """[K] 64 random bits for tokens at some places: `rng.bits(use, sequences.lengths)[index]`, and no others."""
    owner = sequences.owners()[index]
    return mix_more(rng.bits(use)[owner], index - sequences.offsets[owner])


def ordinary(sequences: Sequences) -> tuple[Ints, Ints]:
    """The tokens that may be corrupted: their places [E] in the flat array, and how many each sequence has [S]."""
    if sequences.special is None:
        return np.arange(len(sequences.tokens)), sequences.lengths
    free = ~sequences.special
    return np.flatnonzero(free), totals(free, sequences.offsets)


@dataclass(frozen=True, slots=True)
class Words:
    """The words of all sequences, special tokens left out."""

    start: Ints  # [W] place of the first token in the flat array
    length: Ints  # [W] in tokens
    sizes: Ints  # [S] words of each sequence

    @classmethod
    def of(cls, sequences: Sequences, *, longest: int | None = None) -> "Words":
        """Those of some sequences; one of more than `longest` tokens counts as several."""
        if sequences.words is None:
            raise UsageError("these sequences do not say where words start; open their stream with words=True")
        first = np.flatnonzero(sequences.words)
        length = np.diff(np.append(first, len(sequences.tokens)))
        free = np.ones(len(first), dtype=np.bool_) if sequences.special is None else ~sequences.special[first]
        if longest is not None and (length > longest).any():
            return cls._of(*windows(first[free], length[free], longest)[:2], sequences.offsets)
        return cls._of(first[free], length[free], sequences.offsets)

    @classmethod
    def _of(cls, start: Ints, length: Ints, offsets: Ints) -> "Words":
        return cls(start, length, np.diff(np.searchsorted(start, offsets)))

    def tokens(self) -> Ints:
        """[S] ordinary tokens of each sequence."""
        return totals(self.length, bounds(self.sizes))

    def take(self, which: Ints) -> Ints:
        """[K] the places of all tokens of some words."""
        return spread(self.start[which], self.length[which])
