"""Sequence packing: assignment of sequences to rows by best-fit decreasing (Johnson, 1973), one length at a time.

Sequences of equal length are interchangeable, and so are rows with equal room. So a step places all sequences of one
length (the longest first) in all rows of one room (the tightest that fits). The result is exactly that of placing each
sequence separately: the tightest row stays the tightest until it is too small, so each row takes as many sequences as
fit. The work grows with the number of lengths and rows, not with the number of sequences.

Best fit leaves gaps if a row holds few sequences and none is short (stories of 150 tokens in rows of 512). `pack` then
also packs by exact sums, in several orders, and returns the packing with the fewest rows. For an encoder-decoder a row
has room on two sides. Best fit optimises the scarcer side and treats the other as a constraint. `pack` then also tries
balanced packing, which fills both sides evenly.

*Exact sums*: each row starts with a sequence that is hard to place and takes the others that fill it best. This is the
minimum-bin-slack rule (Gupta and Ho, 1999) on a histogram of lengths. A *pattern* is the list of lengths in one row.
The method repeats a pattern for as many rows as the histogram allows; then at least one of its lengths is used up. So
there are few patterns. To find a pattern, the bits of one large integer mark the sums that the remaining lengths can
reach. The best order of starting and of filling rows depends on the histogram, so `PACKING_ORDERS` has several.

*Balanced packing* is a form of vector bin packing. This method fills one row at a time. It starts with the largest
remaining sequence. The next sequence is the one that fits and leaves the emptier of the two sides as full as possible
(a greedy rule for vectors, after Panigrahy et al., 2011). Sides are measured as shares of a row. If few sequences fill
a row and none is short, the choice of the second sequence decides the result. `tries` > 1 then tries several
candidates.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from pretune.core.errors import UsageError
from pretune.data.sequences import Ints

MIN_GAP_SHARE, WIDE_GAP_SHARE = 0.001, 0.08
"""Shares of excess rows, above the lower bound, from which `pack` tries the other methods, and the slow one."""

MAX_EXACT_ROW = 2048
"""Maximum row length for exact sums: their cost grows with its square, and best fit packs longer rows well."""


def pack(
    lengths: Ints,
    room: int,
    *,
    max_sequences: int | None = None,
    source: Ints | None = None,
    source_room: int | None = None,
) -> Ints:
    """Return the row of each sequence.

    A row holds `room` tokens, `source_room` source tokens and at most `max_sequences` sequences. Raises `UsageError` if
    a sequence is empty or longer than a row.

    >>> pack(np.array([5, 2, 4, 3, 2]), 8).tolist()
    [0, 1, 1, 0, 1]
    """
    rows = best_fit(lengths, room, max_sequences=max_sequences, source=source, source_room=source_room)
    min_rows = max(int(lengths.sum()) / room, len(lengths) / (max_sequences or room))
    ways: list[tuple[float, Callable[[], Ints]]] = []
    if source is not None and source_room is not None:
        min_rows = max(min_rows, int(source.sum()) / source_room)
        balance = partial(balanced_fit, lengths, room, source, source_room, max_sequences or room)
        ways = [(MIN_GAP_SHARE, balance), (WIDE_GAP_SHARE, partial(balance, tries=8))]
    elif room <= MAX_EXACT_ROW:
        ways = [
            (MIN_GAP_SHARE, partial(exact_fit, lengths, room, max_sequences or room, way)) for way in PACKING_ORDERS
        ]
    for gaps, way in ways:
        if rows.max(initial=-1) + 1 <= (1 + gaps) * min_rows + 1:
            break
        new_rows = way()
        if new_rows.max() < rows.max():
            rows = new_rows
    return rows


def best_fit(
    lengths: Ints,
    room: int,
    *,
    max_sequences: int | None = None,
    source: Ints | None = None,
    source_room: int | None = None,
) -> Ints:
    """Return the row of each sequence by best-fit decreasing alone; arguments and errors as in `pack`."""
    _check_lengths(lengths, room, "tokens")
    other_lengths, other_room = np.zeros_like(lengths), 0
    if source is not None and source_room is not None:
        _check_lengths(source, source_room, "source tokens")
        other_lengths, other_room = source, source_room
        if int(source.sum()) * room > int(lengths.sum()) * source_room:
            lengths, room, other_lengths, other_room = source, source_room, lengths, room
    # Sort by the larger of the two shares of a row; with one side this is the length.
    size = np.maximum(lengths * max(other_room, 1), other_lengths * room)
    order = np.lexsort((-other_lengths, -lengths, -size))
    sorted_lengths, sorted_others = lengths[order], other_lengths[order]
    starts = np.flatnonzero(
        np.append(True, (np.diff(sorted_lengths) != 0) | (np.diff(sorted_others) != 0))[: len(order)]
    )
    rows = _OpenRows(room, other_room, max_sequences or room, int(lengths.min(initial=room)))
    counts = np.diff(np.append(starts, len(order)))
    for length, other_length, count in zip(
        sorted_lengths[starts].tolist(), sorted_others[starts].tolist(), counts.tolist(), strict=True
    ):
        rows.place(length, other_length, count)
    out = np.empty(len(lengths), dtype=np.int64)
    out[order] = np.repeat(rows.assigned_rows, rows.assigned_counts)
    return out


class _OpenRows:
    """Open rows, indexed by their remaining room."""

    def __init__(self, room: int, other_room: int, max_sequences: int, min_length: int) -> None:
        self.capacity = (room, other_room, max_sequences)
        self.min_length = min_length  # a row with less room is closed
        self.count = 0
        self.assigned_rows: list[int] = []  # the row of each assignment; `assigned_counts` has its number of sequences
        self.assigned_counts: list[int] = []
        # By room on the first side: rows by (room on the other side, number of sequences that still fit).
        self._rows_by_room: list[dict[tuple[int, int], list[int]]] = [{} for _ in range(room + 1)]
        self._max_other_room = np.full(room + 1, -1)  # maximum room on the other side, by room on the first

    def place(self, length: int, other_length: int, count: int) -> None:
        """Place `count` sequences of lengths (`length`, `other_length`)."""
        while count:
            fits = self._max_other_room[length:] >= other_length
            tightest = int(fits.argmax())
            if fits[tightest]:
                left = length + tightest
                same_room = self._rows_by_room[left]
                key = min(key for key in same_room if key[0] >= other_length)
                rows = same_room[key]
            else:
                left, key = self.capacity[0], self.capacity[1:]
                rows = []
            fit = min(left // length, key[0] // other_length if other_length else count, key[1], count)
            need = -(-count // fit)
            if not rows:
                row_ids = list(range(self.count, self.count + need))
                self.count += need
            else:
                row_ids = rows[-need:]
                del rows[-need:]
                if not rows:
                    del same_room[key]
                    self._max_other_room[left] = max((room for room, _ in same_room), default=-1)
            placed_count = min(count, len(row_ids) * fit)
            rest = placed_count - (len(row_ids) - 1) * fit  # sequences in the last of these rows
            self.assigned_rows += row_ids
            self.assigned_counts += [fit] * (len(row_ids) - 1) + [rest]
            self._put(row_ids[:-1], left - fit * length, key[0] - fit * other_length, key[1] - fit)
            self._put(row_ids[-1:], left - rest * length, key[0] - rest * other_length, key[1] - rest)
            count -= placed_count

    def _put(self, rows: list[int], room: int, other_room: int, sequences_left: int) -> None:
        if rows and room >= self.min_length and sequences_left:
            self._rows_by_room[room].setdefault((other_room, sequences_left), []).extend(rows)
            self._max_other_room[room] = max(self._max_other_room[room], other_room)


def _check_lengths(lengths: Ints, room: int, noun: str) -> None:
    if len(lengths) and int(lengths.max()) > room:
        index = int(lengths.argmax())
        raise UsageError(f"sample {index} may have {int(lengths.max())} {noun}; a row holds {room}: lower the limit")
    if len(lengths) and int(lengths.min()) < 1:
        raise UsageError(
            f"sample {int(lengths.argmin())} may have {int(lengths.min())} {noun}; every sample needs at least 1"
        )


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
        kinds, target_sizes, source_sizes, left = (part[is_left] for part in (kinds, target_sizes, source_sizes, left))
    out = np.empty(len(code), dtype=np.int64)
    out[np.argsort(whose, kind="stable")] = [row for row_list in places for row in row_list]
    return out


def _find_pattern(
    target_sizes: Ints, source_sizes: Ints, remaining: Ints, capacity: int, max_sequences: int, tries: int
) -> dict[int, int]:
    """Return the kinds that fill a row, the first kind included, with the count of each."""
    # Room left on each side after the first sequence and each candidate for the second.
    x, y = capacity - target_sizes - target_sizes[0], capacity - source_sizes - source_sizes[0]
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
