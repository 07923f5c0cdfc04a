"""Ragged arrays as flat numbers and lengths: the few operations everything in this folder is made of."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def spread(starts: Ints, lengths: Ints) -> Ints:
    """Many stretches of numbers, one after another.

    >>> spread(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    return np.repeat(starts - compute_starts(lengths), lengths) + np.arange(int(lengths.sum()))


def compute_starts(lengths: Ints) -> Ints:
    """Where each stretch starts when they lie end to end.

    >>> compute_starts(np.array([2, 3, 1])).tolist()
    [0, 2, 5]
    """
    return np.asarray(np.cumsum(lengths) - lengths)


def compute_offsets(lengths: Ints) -> Ints:
    """Where each stretch starts when they lie end to end, and the end: one more than there are stretches."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)))


def split_windows(starts: Ints, lengths: Ints, limit: int) -> tuple[Ints, Ints, Ints]:
    """Stretches cut into windows of `limit`, the last of each keeping what is left: starts, lengths, whose they are.

    >>> [part.tolist() for part in split_windows(np.array([0, 10]), np.array([5, 2]), 2)]
    [[0, 2, 4, 10], [2, 2, 1, 2], [0, 0, 0, 1]]
    """
    counts = -(-lengths // limit)
    owners = np.repeat(np.arange(len(lengths)), counts)
    window_starts = spread(np.zeros_like(counts), counts) * limit
    return starts[owners] + window_starts, np.minimum(lengths[owners] - window_starts, limit), owners
