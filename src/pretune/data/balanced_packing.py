"""Balanced packing of rows with two sides (source and target), in the manner of vector bin packing.

Best fit looks at one side, and the other runs out early. Here a row is filled by itself, beginning with the largest
sequence there is; of those that still fit, the next is the one after which the emptier of the two sides is as full as
can be (a greedy rule for vectors, in the manner of Panigrahy et al., 2011). Sides are measured as shares of a row. As
with exact sums, a row that was found is used as often as there are such sequences.

Where few sequences fill a row and none is short, the second one decides: then some others are tried in its place.
"""

import numpy as np

from pretune.data.ragged import Ints

MAX_LENGTH_PAIRS = 4096
"""Pairs of lengths that are looked at together: the work for each sequence grows with them."""


def balanced_fit(
    lengths: Ints, room: int, source: Ints, source_room: int, max_sequences: int, *, tries: int = 1
) -> Ints:
    """The row of each sequence, rows of `room` tokens and `source_room` source tokens and at most `most` sequences.

    >>> balanced_fit(np.array([6, 2, 4, 2]), 8, np.array([1, 3, 1, 4]), 5, 8).tolist()
    [0, 1, 1, 0]
    """
    code = lengths * (source_room + 1) + source
    size = max(MAX_LENGTH_PAIRS * len(code) // max(len(np.unique(code)), 1), 1)
    rows, out = 0, np.empty(len(code), dtype=np.int64)
    for start in range(0, len(code), size):
        part = slice(start, start + size)
        part_rows = _pack_codes(code[part], room, source_room, max_sequences, tries)
        out[part] = rows + part_rows
        rows += int(part_rows.max()) + 1
    return out


def _pack_codes(code: Ints, room: int, source_room: int, max_sequences: int, tries: int) -> Ints:
    """Return the row of each sequence, given its two lengths as one number."""
    values, whose, left = np.unique(code, return_inverse=True, return_counts=True)
    # In units of which a row has equally many on both sides.
    target_sizes, source_sizes = values // (source_room + 1) * source_room, values % (source_room + 1) * room
    kinds = np.lexsort((-source_sizes, -target_sizes, -np.maximum(target_sizes, source_sizes)))
    target_sizes, source_sizes, left = target_sizes[kinds], source_sizes[kinds], left[kinds]
    places: list[list[int]] = [[] for _ in values]  # by kind: the rows that take one
    rows = 0
    while len(kinds):
        pattern = _find_pattern(target_sizes, source_sizes, left, room * source_room, max_sequences, tries)
        uses = min(int(left[kind]) // times for kind, times in pattern.items())
        for kind, times in pattern.items():
            places[kinds[kind]] += list(range(rows, rows + uses)) * times
            left[kind] -= uses * times
        rows += uses
        is_left = left > 0
        kinds, target_sizes, source_sizes, left = (
            kinds[is_left],
            target_sizes[is_left],
            source_sizes[is_left],
            left[is_left],
        )
    out = np.empty(len(code), dtype=np.int64)
    out[np.argsort(whose, kind="stable")] = [row for row_list in places for row in row_list]
    return out


def _find_pattern(
    target_sizes: Ints, source_sizes: Ints, remaining: Ints, capacity: int, max_sequences: int, tries: int
) -> dict[int, int]:
    """The kinds that fill a row, beginning with the first, and how often each does."""
    x, y = (
        capacity - target_sizes - target_sizes[0],
        capacity - source_sizes - source_sizes[0],
    )  # what is left of the row after the first, and each of them as the second
    if remaining[0] == 1:
        x[0] = -1
    rest = _compute_slack(x, y, capacity)
    seconds = np.argsort(rest, kind="stable") if tries > 1 else np.array([rest.argmin()])
    best, min_empty = {0: 1}, capacity + 1
    for place in (2**number - 1 for number in range(tries)):  # near ones, and some that are far
        if max_sequences < 2 or place >= len(seconds) or rest[seconds[place]] > capacity:
            break
        pattern, empty = _fill_row(
            int(seconds[place]), target_sizes, source_sizes, remaining, capacity, max_sequences, x.copy(), y.copy()
        )
        if empty < min_empty:
            best, min_empty = pattern, empty
    return best


def _fill_row(
    kind: int,
    target_sizes: Ints,
    source_sizes: Ints,
    remaining: Ints,
    capacity: int,
    max_sequences: int,
    x: Ints,
    y: Ints,
) -> tuple[dict[int, int], int]:
    """A row of the first kind and a second one, filled up, and what stays empty on the side that is less full."""
    pattern, empty = {0: 1}, capacity
    for _ in range(max_sequences - 1):
        empty = int(max(x[kind], y[kind]))
        pattern[kind] = pattern.get(kind, 0) + 1
        x -= target_sizes[kind]
        y -= source_sizes[kind]
        if pattern[kind] == remaining[kind]:
            x[kind] = -1  # there is no more of it
        rest = _compute_slack(x, y, capacity)
        kind = int(rest.argmin())
        if rest[kind] > capacity:
            break
    return pattern, empty


def _compute_slack(x: Ints, y: Ints, capacity: int) -> Ints:
    """Return the empty room of the emptier side; more than a row if the sequence does not fit."""
    return np.where(np.minimum(x, y) < 0, capacity + 1, np.maximum(x, y))
