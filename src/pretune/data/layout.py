"""Laying sequences out in rows: from lists of token ids to a `Batch`.

`batch` keeps the order it is given (next fit), so that `Batch.split` answers in the same order.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE, Batch, Targets

Tokens = Sequence[int] | NDArray[np.integer]
Ints = NDArray[np.int64]


def batch(
    sequences: Sequence[Tokens] | None = None,
    *,
    source: Sequence[Tokens] | None = None,
    target: Sequence[Tokens] | None = None,
    row: int | None = None,
    segments: Sequence[Tokens] | None = None,
    labels: Sequence[Tokens] | None = None,
    prefix: Sequence[int] | None = None,
) -> Batch:
    """Pack sequences of token ids, in order, into rows of `row` tokens (default: the longest sequence).

    For an encoder-decoder give `source` and `target` (what the decoder reads, its start token included). `labels`
    holds one label per token, -100 where there is none; the vocabulary head then runs on the labelled tokens only.
    `prefix` says how many first tokens of each sequence all of it may see.

    >>> batch([[101, 7592, 102], [101, 102]]).tokens.tolist()
    [101, 7592, 102, 101, 102, 0]
    """
    if (sequences is None) == (target is None) or (source is None) != (target is None):
        raise UsageError("batch takes either sequences, or source and target together")
    read = _lengths(sequences if sequences is not None else target or (), "sequence" if target is None else "target")
    given = read if source is None else _lengths(source, "source")
    if len(given) != len(read):
        raise UsageError(f"batch got {len(given)} source sequences and {len(read)} target sequences; they go in pairs")
    room = row or int(read.max())
    source_room = room if source is None else int(given.max())
    if int(read.max()) > room:
        raise UsageError(f"sequence {int(read.argmax())} has {int(read.max())} tokens; a row holds {room}")
    starts = _next_fit(read, given, room, source_room)
    side = _Side(read, starts, room)
    encoder = None
    if source is not None:
        there = _Side(given, starts, source_room)
        encoder = there.batch(tokens=there.spread(source))
    first = sequences if sequences is not None else target or ()
    return side.batch(
        tokens=side.spread(first),
        segments=None if segments is None else side.spread(segments),
        targets=None if labels is None else _targets(side.spread(labels, IGNORE)),
        prefix=None if prefix is None else side.per_cell(prefix),
        source=encoder,
    )


class _Side:
    """Where each of S sequences goes when rows begin at the sequences `starts`."""

    def __init__(self, lengths: Ints, starts: Ints, room: int) -> None:
        self.lengths, self.room, self.rows = lengths, room, len(starts)
        counts = np.diff(np.append(starts, len(lengths)))
        row = np.repeat(np.arange(self.rows), counts)
        before = np.cumsum(lengths) - lengths
        self.begin = row * room + before - before[starts][row]  # first flat position of each sequence
        self.cell = np.arange(len(lengths)) + row  # one filler cell ends each earlier row
        self.flat = np.repeat(self.begin - before, lengths) + np.arange(lengths.sum())  # flat position of each token

    def spread(self, values: Sequence[Tokens], fill: int = 0) -> Ints:
        """Per-token values of all sequences at their flat positions."""
        found = np.concatenate([np.asarray(value, dtype=np.int64) for value in values])
        if len(found) != len(self.flat):
            raise UsageError(f"batch got {len(found)} per-token values for {len(self.flat)} tokens")
        out = np.full(self.rows * self.room, fill, dtype=np.int64)
        out[self.flat] = found
        return out

    def per_cell(self, values: Sequence[int]) -> Ints:
        if len(values) != len(self.cell):
            raise UsageError(f"batch got {len(values)} per-sequence values for {len(self.cell)} sequences")
        out = np.zeros(len(self.cell) + self.rows, dtype=np.int64)
        out[self.cell] = values
        return out

    def batch(self, *, source: Batch | None = None, targets: Targets | None = None, **parts: Ints | None) -> Batch:
        size, cells = self.rows * self.room, len(self.lengths) + self.rows
        offsets = np.full(cells + 1, size, dtype=np.int32)
        offsets[self.cell] = self.begin
        ends = self.begin + self.lengths
        last = np.append(self.cell[1:] != self.cell[:-1] + 1, True)  # the last sequence of each row
        offsets[self.cell[last] + 1] = ends[last]  # its filler starts where it ends
        sequence = np.full(size, -1, dtype=np.int64)
        sequence[self.flat] = np.repeat(self.cell, self.lengths)
        positions = np.zeros(size, dtype=np.int64)
        positions[self.flat] = self.flat - np.repeat(self.begin, self.lengths)
        given = {name: torch.from_numpy(value) for name, value in parts.items() if value is not None}
        return Batch(
            offsets=torch.from_numpy(offsets),
            sequence=torch.from_numpy(sequence),
            positions=torch.from_numpy(positions),
            rows=self.rows,
            whole=len(self.lengths) == self.rows and bool((self.lengths == self.room).all()),
            targets=targets,
            source=source,
            **given,
        )


def _lengths(sequences: Sequence[Tokens], name: str) -> Ints:
    if not len(sequences):
        raise UsageError("batch got no sequences")
    lengths = np.asarray([len(sequence) for sequence in sequences], dtype=np.int64)
    if (lengths == 0).any():
        raise UsageError(f"{name} {int((lengths == 0).argmax())} is empty; every sequence needs at least one token")
    return lengths


def _next_fit(read: Ints, given: Ints, room: int, source_room: int) -> Ints:
    """The sequences at which a new row begins: each goes into the current row if both sides have room."""
    starts, used, source_used = [0], 0, 0
    for number, (length, source_length) in enumerate(zip(read.tolist(), given.tolist(), strict=True)):
        if used + length > room or source_used + source_length > source_room:
            starts.append(number)
            used = source_used = 0
        used += length
        source_used += source_length
    return np.asarray(starts, dtype=np.int64)


def _targets(labels: Ints) -> Targets:
    index = np.flatnonzero(labels != IGNORE)
    return Targets(index=torch.from_numpy(index), labels=torch.from_numpy(labels[index]))
