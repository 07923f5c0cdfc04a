"""Balanced packing of rows with two sides (source and target), a form of vector bin packing.

Best fit optimises one side, and the other side runs out of room early. This method fills one row at a time. It starts
with the largest remaining sequence. The next sequence is the one that fits and leaves the emptier of the two sides as
full as possible (a greedy rule for vectors, after Panigrahy et al., 2011). Sides are measured as shares of a row. As
with exact sums, the method repeats a row pattern as often as the remaining sequences allow.

If few sequences fill a row and none is short, the choice of the second sequence decides the result. `tries` > 1 then
tries several candidates for it.
"""

import numpy as np

from pretune.data.ragged import Ints

MAX_LENGTH_PAIRS = 4096
"""Maximum number of distinct length pairs packed together; the work per sequence grows with it."""


def balanced_fit(
    lengths: Ints, room: int, source: Ints, source_room: int, max_sequences: int, *, tries: int = 1
) -> Ints:
    """Return the row of each sequence.

    A row holds `room` tokens, `source_room` source tokens and at most `max_sequences` sequences. `tries` is the number
    of candidates for the second sequence of a row.

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
    """Return the row of each sequence, given both of its lengths encoded as one number."""
    values, whose, left = np.unique(code, return_inverse=True, return_counts=True)
    # Units in which both sides of a row have the same capacity.
    target_sizes, source_sizes = values // (source_room + 1) * source_room, values % (source_room + 1) * room
    kinds = np.lexsort((-source_sizes, -target_sizes, -np.maximum(target_sizes, source_sizes)))
    target_sizes, source_sizes, left = target_sizes[kinds], source_sizes[kinds], left[kinds]
    places: list[list[int]] = [[] for _ in values]  # by kind: the row of each of its sequences
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
    """Return the kinds that fill a row, the first kind included, with the count of each."""
    x, y = (
        capacity - target_sizes - target_sizes[0],
        capacity - source_sizes - source_sizes[0],
    )  # room left on each side after the first sequence and each candidate for the second
    if remaining[0] == 1:
        x[0] = -1
    rest = _compute_slack(x, y, capacity)
    seconds = np.argsort(rest, kind="stable") if tries > 1 else np.array([rest.argmin()])
    best, min_empty = {0: 1}, capacity + 1
    for place in (2**number - 1 for number in range(tries)):  # the best candidates and some worse ones
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
    """Fill a row that starts with the first kind and `kind`; return the pattern and the slack of the emptier side."""
    pattern, empty = {0: 1}, capacity
    for _ in range(max_sequences - 1):
        empty = int(max(x[kind], y[kind]))
        pattern[kind] = pattern.get(kind, 0) + 1
        x -= target_sizes[kind]
        y -= source_sizes[kind]
        if pattern[kind] == remaining[kind]:
            x[kind] = -1  # no sequence of this kind remains
        rest = _compute_slack(x, y, capacity)
        kind = int(rest.argmin())
        if rest[kind] > capacity:
            break
    return pattern, empty


def _compute_slack(x: Ints, y: Ints, capacity: int) -> Ints:
    """Return the slack of the emptier side for each kind; `capacity` + 1 if the kind does not fit."""
    return np.where(np.minimum(x, y) < 0, capacity + 1, np.maximum(x, y))
