"""Rows put together by exact sums: the longest sequence left, and the others that fill up its row best.

This is the minimum-bin-slack rule (Gupta and Ho, 1999) on a histogram of lengths. A *pattern* is the lengths of one
row; it is used for as many rows as the histogram allows, and then at least one of its lengths is used up. So there are
few patterns, each found by asking which sums the lengths at hand can reach: the bits of one large integer. The lengths
with the most tokens left are asked first, so that what remains keeps its variety and can be summed up to the end.
"""

import numpy as np

from pretune.data.ragged import Ints

_FRESH = 8  # patterns after which it is looked up anew what there is most of


def exact_fit(lengths: Ints, room: int, most: int) -> Ints:
    """The row of each sequence, rows of `room` tokens and at most `most` sequences.

    >>> exact_fit(np.array([6, 5, 3, 3, 2, 2, 3]), 12, 12).tolist()
    [0, 1, 0, 0, 1, 1, 1]
    """
    left = np.bincount(lengths, minlength=room + 1).tolist()
    places: list[list[int]] = [[] for _ in left]  # by length: the rows that take one
    rows, patterns, longest = 0, 0, room
    plenty: list[int] = []
    while longest:
        if not left[longest]:
            longest -= 1
            continue
        if patterns % _FRESH == 0:
            present = [length for length in range(longest, 0, -1) if left[length]]
            plenty = sorted(present, key=lambda length: -left[length] * length)
        patterns += 1
        left[longest] -= 1
        pattern = [longest, *_best_sum(left, plenty, room - longest)[: most - 1]]
        left[longest] += 1
        times = {length: pattern.count(length) for length in pattern}
        uses = min(left[length] // count for length, count in times.items())
        for length, count in times.items():
            places[length] += list(range(rows, rows + uses)) * count
            left[length] -= uses * count
        rows += uses
    out = np.empty(len(lengths), dtype=np.int64)
    out[np.argsort(lengths, kind="stable")] = [row for found in places for row in found]
    return out


def _best_sum(left: list[int], lengths: list[int], free: int) -> list[int]:
    """Lengths out of a histogram, tried in the order given, with the largest sum that `free` allows."""
    within, goal = (1 << free + 1) - 1, 1 << free
    reached = 1  # bit s: the lengths so far can sum to s
    steps: list[tuple[int, int]] = []  # a length that was added, and what was reached without it
    for length in lengths:
        for _ in range(min(left[length], free // length)):
            more = (reached | reached << length) & within
            if more == reached:
                break
            steps.append((length, reached))
            reached = more
        if reached & goal:
            break
    found, total = [], reached.bit_length() - 1
    for length, before in reversed(steps):
        if not before >> total & 1:
            found.append(length)
            total -= length
    return sorted(found, reverse=True)
