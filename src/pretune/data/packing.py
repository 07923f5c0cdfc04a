"""Sequence packing: assignment of sequences to rows by best-fit decreasing (Johnson, 1973), one length at a time.

Sequences of equal length are interchangeable, and so are rows with equal room. So a step places all sequences of one
length (the longest first) in all rows of one room (the tightest that fits). The result is exactly that of placing each
sequence separately: the tightest row stays the tightest until it is too small, so each row takes as many sequences as
fit. The work grows with the number of lengths and rows, not with the number of sequences.

Best fit leaves gaps if a row holds few sequences and none is short (stories of 150 tokens in rows of 512). `pack` then
also packs by exact sums, in several orders, and returns the packing with the fewest rows. For an encoder-decoder a row
has room on two sides. Best fit optimises the scarcer side and treats the other as a constraint. `pack` then also tries
balanced packing, which fills both sides evenly.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from pretune.core.errors import UsageError
from pretune.data.packing_methods import PACKING_ORDERS, balanced_fit, exact_fit
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
