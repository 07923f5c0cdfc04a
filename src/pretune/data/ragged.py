"""Operations on ragged arrays, stored as flat values and lengths."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def spread(starts: Ints, lengths: Ints) -> Ints:
    """Concatenate ranges of integers, given their starts and lengths.

    >>> spread(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    return np.repeat(starts - compute_starts(lengths), lengths) + np.arange(int(lengths.sum()))


def compute_starts(lengths: Ints) -> Ints:
    """Return the start of each range when ranges of these lengths are concatenated.

    >>> compute_starts(np.array([2, 3, 1])).tolist()
    [0, 2, 5]
    """
    return np.asarray(np.cumsum(lengths) - lengths)


def compute_offsets(lengths: Ints) -> Ints:
    """Return the starts of concatenated ranges and the end of the last: n + 1 offsets."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)))


def split_windows(starts: Ints, lengths: Ints, limit: int) -> tuple[Ints, Ints, Ints]:
    """Split ranges into windows of length `limit`; the last window of a range may be shorter.

    Return start, length and index of the range of each window.

    >>> [part.tolist() for part in split_windows(np.array([0, 10]), np.array([5, 2]), 2)]
    [[0, 2, 4, 10], [2, 2, 1, 2], [0, 0, 0, 1]]
    """
    counts = -(-lengths // limit)
    owners = np.repeat(np.arange(len(lengths)), counts)
    window_starts = spread(np.zeros_like(counts), counts) * limit
    return starts[owners] + window_starts, np.minimum(lengths[owners] - window_starts, limit), owners
