"""Vectorized random sampling of tokens, words and spans in all sequences of a batch.

Items are concatenated in groups of given sizes: the tokens or the words of each sequence. The sample of a group depends
on its own random bits alone, not on the rest of the batch.

    index, sizes = find_ordinary_tokens(sequences)                     # the tokens that may be corrupted
    counts = round_randomly(0.15 * sizes, rng.uniform(0))              # [S] this many on average
    index[sample_k(rng.bits(1, sizes), sizes, counts)]                 # [K] positions, counts[s] per sequence

Legend: G groups, n items in all, S sequences, T tokens, W words.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.core.seed import extend_mix
from pretune.data.sampling import Counters
from pretune.data.sequences import Bools, Ints, Sequences, compute_offsets, compute_starts, split_windows, spread

Bits = NDArray[np.uint64]
Floats = NDArray[np.floating[Any]]

_PLACE, _KEY = 20, 24
"""Bits of a sorting key: group, random key, place. NOTE: a changed number changes the draws of every run."""


def round_randomly(mean: Floats, chance: Floats) -> Ints:
    """Round to integers [G] with the given means, each less than 1 away from its mean.

    >>> round_randomly(np.array([1.25, 1.25]), np.array([0.3, 0.2])).tolist()
    [1, 2]
    """
    floor = np.floor(mean)
    return np.asarray(floor + (chance < mean - floor), dtype=np.int64)  # NOTE: 5 + 0.99… may round up to 6


def shuffle_groups(bits: Bits, sizes: Ints) -> Ints:
    """Shuffle the items of each group by their random bits; returns item numbers [n], group after group.

    >>> shuffle_groups(np.array([3, 1, 2, 9, 8], dtype=np.uint64) << np.uint64(60), np.array([3, 2])).tolist()
    [1, 2, 0, 4, 3]
    """
    first = np.repeat(compute_starts(sizes), sizes)
    place = np.arange(len(bits)) - first
    key = bits >> np.uint64(64 - _KEY)
    if max(len(sizes), int(sizes.max(initial=0))) > 2**_PLACE:  # too many for one key: the same order, but slower
        return np.lexsort((place, key, first))
    group = np.arange(len(sizes), dtype=np.uint64) << np.uint64(_PLACE + _KEY)
    keys = np.repeat(group, sizes)
    keys |= key << np.uint64(_PLACE)
    keys |= place.view(np.uint64)
    keys.sort()  # keys are distinct, so stability is not needed; the place identifies the item
    keys &= np.uint64(2**_PLACE - 1)
    return first + keys.view(np.int64)


def sample_k(bits: Bits, sizes: Ints, counts: Ints) -> Ints:
    """Sample `counts[g]` items of each group without replacement; returns item numbers [K], shuffled in a group."""
    low = _find_candidates(bits, sizes, counts)
    index, left = np.flatnonzero(low), sum_groups(low, compute_offsets(sizes))
    sample: Ints = index[take_first(shuffle_groups(bits[index], left), left, counts)]
    return sample


def _find_candidates(bits: Bits, sizes: Ints, counts: Ints) -> Bools:
    """Return a mask [n] of the items that can be in the sample: sorting a third of them is faster than all.

    These have low bits: at most four standard deviations above their share. All items of a group if those are too few.
    """
    room = np.maximum(sizes, 1)
    share = counts / room
    bound = share + 4 * np.sqrt(share / room) + 4 / room
    low = bits < np.repeat(np.minimum(bound * 2.0**64, 2.0**64 - 2.0**12).astype(np.uint64), sizes)
    is_short = sum_groups(low, compute_offsets(sizes)) < counts
    return low | np.repeat(is_short, sizes) if is_short.any() else low


def take_first(items: NDArray[Any], sizes: Ints, counts: Ints) -> NDArray[Any]:
    """Return the first `counts[g]` items of each group."""
    return items[spread(compute_starts(sizes), counts)]


def index_to_mask(index: Ints, size: int) -> Bools:
    """Return a mask [size], True at `index`."""
    out = np.zeros(size, dtype=np.bool_)
    out[index] = True
    return out


def sum_groups(values: NDArray[Any], offsets: Ints) -> Ints:
    """Sum the values between consecutive offsets [G]; groups may be empty."""
    return np.diff(compute_offsets(values)[offsets])


def exclusive_cumsum(values: Ints, sizes: Ints) -> Ints:
    """Return the sum of the values before each item in its group [n].

    >>> exclusive_cumsum(np.array([2, 3, 4, 1, 5]), np.array([3, 2])).tolist()
    [0, 2, 5, 0, 1]
    """
    ends = compute_offsets(values)
    return ends[:-1] - np.repeat(ends[compute_starts(sizes)], sizes)


def fill_budget(weights: Ints, sizes: Ints, budget: Floats, chance: Floats) -> Bools:
    """Return a mask [n] of the items that fill each group's budget, in order.

    The item that exceeds the budget is included with the probability that makes the mean sum of weights equal to it;
    later items are not.

    >>> fill_budget(np.array([2, 4, 1]), np.array([3]), np.array([3.0]), np.array([0.1])).tolist()
    [True, True, False]
    """
    rest = np.repeat(budget, sizes) - exclusive_cumsum(weights, sizes)
    return rest > np.repeat(chance, sizes) * weights


def draw_bits_at(rng: Counters, use: int, sequences: Sequences, index: Ints) -> Bits:
    """Return 64 random bits per token at `index` [K]: `rng.bits(use, sequences.lengths)[index]`, but faster."""
    owner = sequences.find_owners()[index]
    return extend_mix(rng.bits(use)[owner], index - sequences.offsets[owner])


def find_ordinary_tokens(sequences: Sequences) -> tuple[Ints, Ints]:
    """Return the positions [E] of the tokens that may be corrupted, and their number in each sequence [S]."""
    if sequences.special is None:
        return np.arange(len(sequences.tokens)), sequences.lengths
    free = ~sequences.special
    return np.flatnonzero(free), sum_groups(free, sequences.offsets)


@dataclass(frozen=True, slots=True)
class WordSpans:
    """Words of all sequences, without special tokens."""

    start: Ints  # [W] position of the first token in the flat array
    length: Ints  # [W] in tokens
    sizes: Ints  # [S] number of words of each sequence

    @classmethod
    def from_sequences(cls, sequences: Sequences, *, max_length: int | None = None) -> "WordSpans":
        """Return the words of the sequences; words of more than `max_length` tokens are split."""
        if sequences.words is None:
            raise UsageError("the sequences have no word boundaries; open the stream with words=True")
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
        """Count the ordinary tokens of each sequence [S]."""
        return sum_groups(self.length, compute_offsets(self.sizes))

    def take(self, selection: Ints) -> Ints:
        """Return the positions of all tokens of some words [K]."""
        return spread(self.start[selection], self.length[selection])
