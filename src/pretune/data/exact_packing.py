"""Packing by exact sums: each row starts with a sequence that is hard to place and takes the others that fill it best.

This is the minimum-bin-slack rule (Gupta and Ho, 1999) on a histogram of lengths. A *pattern* is the list of lengths in
one row. The method repeats a pattern for as many rows as the histogram allows; then at least one of its lengths is used
up. So there are few patterns. To find a pattern, the bits of one large integer mark the sums that the remaining lengths
can reach.

The best order of starting and of filling rows depends on the histogram, so `PACKING_ORDERS` has several.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pretune.data.ragged import Ints

_REFRESH_EVERY = 8  # patterns between two updates of the filling order


class PackingOrder(NamedTuple):
    """Order in which lengths start rows, and order in which they fill them: smaller keys first."""

    start_key: Callable[[int, int], tuple[float, float]]  # from a length and the room of a row
    fill_key: Callable[[int, int, int], tuple[float, float]]  # also from the number of sequences left


def _build_middle_order(share: float) -> PackingOrder:
    """Return the order for rows of two and three sequences: medium lengths, near `share` of a row, start rows of three.

    Two medium sequences leave much of a row empty, and three do not fit. So each starts a row that lengths just above
    a third fill up. The lengths that remain are near a half, and two of them fill a row well.
    """

    def start(length: int, room: int) -> tuple[float, float]:
        if 2 * length > room:
            return 0, -length
        return (1, abs(length - share * room)) if 3 * length > room else (2, -length)

    return PackingOrder(start, lambda length, room, _: (3 * length <= room, length))


PACKING_ORDERS = (
    # Start with the longest, fill with the most frequent tokens: the rest stays varied and reaches many sums.
    PackingOrder(lambda length, _: (0, -length), lambda length, _, left: (0, -left * length)),
    # Start with very long ones, then with lengths whose multiples leave most of a row empty; save short ones to fill.
    PackingOrder(
        lambda length, room: (0, -length) if 10 * length > 7 * room else (1, -(room % length)),
        lambda length, _room, _left: (0, -length),
    ),
    *(_build_middle_order(share) for share in (0.36, 0.38, 0.4)),
)


def exact_fit(lengths: Ints, room: int, max_sequences: int, order: PackingOrder = PACKING_ORDERS[0]) -> Ints:
    """Return the row of each sequence; a row holds `room` tokens and at most `max_sequences` sequences.

    >>> exact_fit(np.array([6, 5, 3, 3, 2, 2, 3]), 12, 12).tolist()
    [0, 1, 0, 0, 1, 1, 1]
    """
    left = np.bincount(lengths, minlength=room + 1).tolist()
    places: list[list[int]] = [[] for _ in left]  # by length: the row of each of its sequences
    present = [length for length in range(room, 0, -1) if left[length]]
    starts = sorted(present, key=lambda length: order.start_key(length, room), reverse=True)
    rows = patterns = 0
    fillers: list[int] = []
    while starts:
        seed = starts[-1]
        if not left[seed]:
            starts.pop()
            continue
        if patterns % _REFRESH_EVERY == 0:
            present = [length for length in present if left[length]]
            fillers = sorted(present, key=lambda length: order.fill_key(length, room, left[length]))
        patterns += 1
        left[seed] -= 1
        pattern = [seed, *_find_best_sum(left, fillers, room - seed)[: max_sequences - 1]]
        left[seed] += 1
        times = {length: pattern.count(length) for length in pattern}
        uses = min(left[length] // count for length, count in times.items())
        for length, count in times.items():
            places[length] += list(range(rows, rows + uses)) * count
            left[length] -= uses * count
        rows += uses
    out = np.empty(len(lengths), dtype=np.int64)
    out[np.argsort(lengths, kind="stable")] = [row for row_list in places for row in row_list]
    return out


def _find_best_sum(remaining: list[int], lengths: list[int], room: int) -> list[int]:
    """Return lengths in `remaining` (a histogram) with the largest sum up to `room`, tried in the order `lengths`."""
    in_room, goal = (1 << room + 1) - 1, 1 << room
    sums = 1  # bit s: the lengths so far can sum to s
    steps: list[tuple[int, int]] = []  # an added length, and the sums before it
    for length in lengths:
        for _ in range(min(remaining[length], room // length)):
            new_sums = (sums | sums << length) & in_room
            if new_sums == sums:
                break
            steps.append((length, sums))
            sums = new_sums
        if sums & goal:
            break
    chosen_lengths, total = [], sums.bit_length() - 1
    for length, old_sums in reversed(steps):
        if not old_sums >> total & 1:
            chosen_lengths.append(length)
            total -= length
    return sorted(chosen_lengths, reverse=True)
