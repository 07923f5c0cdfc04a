"""Rows put together by exact sums: a sequence that is hard to place, and the others that fill up its row best.

This is the minimum-bin-slack rule (Gupta and Ho, 1999) on a histogram of lengths. A *pattern* is the lengths of one
row; it is used for as many rows as the histogram allows, and then at least one of its lengths is used up. So there are
few patterns, each found by asking which sums the lengths at hand can reach: the bits of one large integer.

What is hard to place, and which lengths to use up first, depends on what there is; so there are several ways.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pretune.data.ragged import Ints

_REFRESH_EVERY = 8  # patterns after which it is looked up anew what there is most of


class PackingOrder(NamedTuple):
    """In which order lengths start rows, and are asked to fill them: smaller keys first."""

    start_key: Callable[[int, int], tuple[float, float]]  # of a length and the room of a row
    fill_key: Callable[[int, int, int], tuple[float, float]]  # of these, and how many sequences of the length are left


def _build_middle_order(share: float) -> PackingOrder:
    """For rows of two and three: those in the middle go three together, from around a share of the row on.

    Two of them leave much of a row empty and three are too many. Started from there, and filled with what lies just
    above a third, what is left in the end are those near a half, which go well by twos.
    """

    def start(length: int, room: int) -> tuple[float, float]:
        if 2 * length > room:
            return 0, -length
        return (1, abs(length - share * room)) if 3 * length > room else (2, -length)

    return PackingOrder(start, lambda length, room, _: (3 * length <= room, length))


PACKING_ORDERS = (
    # The longest first, filled with what there is most of: what remains keeps its variety, and can be summed up.
    PackingOrder(lambda length, _: (0, -length), lambda length, _, left: (0, -left * length)),
    # The very long, then those that leave most of a row of their own kind empty; the short are kept for them.
    PackingOrder(
        lambda length, room: (0, -length) if 10 * length > 7 * room else (1, -(room % length)),
        lambda length, _room, _left: (0, -length),
    ),
    *(_build_middle_order(share) for share in (0.36, 0.38, 0.4)),
)


def exact_fit(lengths: Ints, room: int, max_sequences: int, order: PackingOrder = PACKING_ORDERS[0]) -> Ints:
    """The row of each sequence, rows of `room` tokens and at most `most` sequences.

    >>> exact_fit(np.array([6, 5, 3, 3, 2, 2, 3]), 12, 12).tolist()
    [0, 1, 0, 0, 1, 1, 1]
    """
    left = np.bincount(lengths, minlength=room + 1).tolist()
    places: list[list[int]] = [[] for _ in left]  # by length: the rows that take one
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
    """Lengths out of a histogram, tried in the order given, with the largest sum that `free` allows."""
    in_room, goal = (1 << room + 1) - 1, 1 << room
    sums = 1  # bit s: the lengths so far can sum to s
    steps: list[tuple[int, int]] = []  # a length that was added, and what was reached without it
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
