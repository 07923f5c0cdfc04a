"""Layout of sequences in rows: converts lists of token ids, or flat arrays, to a `Batch`.

`lay_out` places sequences whose rows are known. `batch` assigns the rows itself by next fit and keeps the order, so
`Batch.split` returns the sequences in the same order. Legend: N tokens, S sequences, C cells, M target slots.

Batches for inference have sequences sorted by length and packed without padding, about a number of tokens per batch.
The longest sequences come first. Gaps in their rows are filled with the longest sequences that fit, so that batches are
full and rows are as short as possible. Each batch has the indices of its sequences, so that results are stored in input
order. Legend: S sequences, B sequences of a batch.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Targets
from pretune.data.plan import BatchShape
from pretune.data.sequences import Bools, Ints, Sequences, compute_offsets

Tokens = Sequence[int] | NDArray[np.integer]


def lay_out(sequences: Sequences, row: Ints, shape: BatchShape) -> Batch:
    """Place each sequence in its row and return a batch of the given shape.

    `row` holds the row of each sequence, in ascending order. The batch has all fields that the sequences have. Per
    token: targets, segments, factorisation rank, masked span, and the index of the word and of the sentence inside the
    sequence (-1 for filler). Per sequence: chunk, prefix, view and label. Per token or sequence: logits of a teacher,
    and features. Rows may be empty. The shape fixes the number of cells and target slots: spare cells are empty and at
    the end, spare slots have the label -100 and the index 0.
    Raises `UsageError` if the rows are invalid or a row, or the target slots, have too little room.
    """
    if len(row) != len(sequences) or (len(row) and (row[0] < 0 or row[-1] >= shape.rows or (np.diff(row) < 0).any())):
        raise UsageError(
            f"row must hold one ascending number from 0 to {shape.rows - 1} for each of the {len(sequences)} sequences"
        )
    encoder = None
    if sequences.source is not None:
        if shape.source is None or len(sequences.source) != len(sequences):
            raise UsageError("sequences with a source need a shape with a source length, and one source per sequence")
        encoder = _SideLayout(sequences.source, row, shape.rows, shape.source, shape.sequences).build_batch(
            sequences.source, None
        )
    side = _SideLayout(sequences, row, shape.rows, shape.length, shape.sequences)
    return side.build_batch(sequences, shape.targets, encoder)


class _SideLayout:
    """Positions of cells, sequences and tokens on one side of a batch (decoder or encoder)."""

    def __init__(self, sequences: Sequences, row: Ints, rows: int, room: int, max_sequences: int | None) -> None:
        lengths = sequences.lengths
        counts = np.bincount(row, minlength=rows)  # sequences of each row
        token_counts = np.diff(compute_offsets(lengths)[compute_offsets(counts)])  # tokens of each row
        if int(token_counts.max()) > room:
            raise UsageError(
                f"row {int(token_counts.argmax())} would have {int(token_counts.max())} tokens; a row holds {room}"
            )
        if max_sequences is not None and int(counts.max()) > max_sequences:
            raise UsageError(
                f"row {int(counts.argmax())} would have {int(counts.max())} sequences; a row holds {max_sequences}"
            )
        self.rows, self.room = rows, room
        self.cells = len(row) + rows if max_sequences is None else rows * (max_sequences + 1)
        self.cell = np.arange(len(row)) + row  # [S] every earlier row ends with one filler cell
        filler = np.cumsum(counts) + np.arange(rows)
        size = np.zeros(self.cells, dtype=np.int64)  # [C] tokens of each cell
        size[self.cell] = lengths
        size[filler] = room - token_counts
        self.size = size
        owner = np.full(self.cells, -1, dtype=np.int64)
        owner[self.cell] = self.cell
        self.sequence = np.repeat(owner, size)  # [N]
        self.is_token = self.sequence >= 0
        self.is_full = len(row) == rows and bool((lengths == room).all())

    def build_batch(self, sequences: Sequences, slots: int | None, source: Batch | None = None) -> Batch:
        offsets, parents = compute_offsets(self.size), np.arange(self.cells)
        if sequences.parents is not None:
            parents[self.cell] -= sequences.parents
        starts = offsets[:-1] - np.where(parents < np.arange(self.cells), self.size[parents], 0)
        positions = np.arange(self.rows * self.room) - np.repeat(starts, self.size)
        positions[~self.is_token] = 0
        return Batch(
            tokens=torch.from_numpy(self._spread(sequences.tokens, 0)),
            offsets=torch.from_numpy(offsets.astype(np.int32)),
            sequence=torch.from_numpy(self.sequence),
            positions=torch.from_numpy(positions),
            rows=self.rows,
            one_per_row=self.is_full,
            targets=None if sequences.targets is None else self._build_targets(sequences.targets, slots),
            segments=self._place_tokens(sequences.segments, 0),
            words=self._place_tokens(_number_groups(sequences.words, sequences), -1),
            sentences=self._place_tokens(_number_groups(sequences.sentences, sequences), -1),
            order=self._place_tokens(sequences.order, 0),
            blanks=self._place_tokens(sequences.blanks, -1),
            chunks=self._place_cells(sequences.chunks, 0),
            prefix=self._place_cells(sequences.prefix, 0),
            view=self._place_cells(sequences.view, 0),
            parents=None if sequences.parents is None else torch.from_numpy(parents),
            labels=self._place_cells(sequences.labels, IGNORE_INDEX),
            teacher_logits=self._place_any(sequences.token_logits, sequences.sequence_logits),
            features=self._place_any(sequences.token_features, sequences.sequence_features),
            source=source,
        )

    def _spread(self, values: NDArray[Any], fill: int) -> NDArray[Any]:
        """Return the values at the positions of their tokens, `fill` elsewhere; sequences keep their order."""
        return _scatter(values, self.is_token, self.rows * self.room, fill)

    def _place_tokens(self, values: NDArray[Any] | None, fill: int) -> Tensor | None:
        return None if values is None else torch.from_numpy(self._spread(values, fill))

    def _place_cells(self, values: NDArray[Any] | None, fill: int) -> Tensor | None:
        return None if values is None else torch.from_numpy(_scatter(values, self.cell, self.cells, fill))

    def _place_any(self, token_values: NDArray[Any] | None, sequence_values: NDArray[Any] | None) -> Tensor | None:
        """Return values per token `[N, K]` or per sequence `[C, K]`, 0 where there is no token or sequence."""
        return self._place_cells(sequence_values, 0) if token_values is None else self._place_tokens(token_values, 0)

    def _build_targets(self, labels: Ints, slots: int | None) -> Targets:
        placed_labels = self._spread(labels, IGNORE_INDEX)
        positions = np.flatnonzero(placed_labels != IGNORE_INDEX)
        if slots is None:
            slots = len(positions)
        if len(positions) > slots:
            raise UsageError(f"{len(positions)} targets in a batch with {slots} target slots; raise the slots per row")
        index, values = np.zeros(slots, dtype=np.int64), np.full(slots, IGNORE_INDEX, dtype=np.int64)
        index[: len(positions)], values[: len(positions)] = positions, placed_labels[positions]
        return Targets(index=torch.from_numpy(index), labels=torch.from_numpy(values))


def _scatter(values: NDArray[Any], places: Ints | Bools, size: int, fill: int) -> NDArray[Any]:
    """Return an array of `size` rows with the values at their places and `fill` elsewhere."""
    dtype = np.int64 if values.dtype.kind in "iub" else np.float32
    out = np.full((size, *values.shape[1:]), fill, dtype=dtype)
    out[places] = values
    return out


def _number_groups(starts: NDArray[np.bool_] | None, sequences: Sequences) -> Ints | None:
    """Return the index of each token's word (or sentence) inside its sequence, given the marked starts."""
    if starts is None or not len(starts):
        return None if starts is None else np.empty(0, dtype=np.int64)
    number = np.cumsum(starts)
    return number - np.repeat(number[np.minimum(sequences.offsets[:-1], len(number) - 1)], sequences.lengths)


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

    For an encoder-decoder give `source` and `target` (the decoder input, start token included). `labels` holds one
    label per token, -100 for none; the vocabulary head then runs on the labelled tokens only. `prefix` is the length of
    the prefix of each sequence that all of its tokens may attend to. Raises `UsageError` for empty sequences, for
    sequences longer than `row`, and for arguments of different lengths.

    >>> batch([[101, 7592, 102], [101, 102]]).tokens.tolist()
    [101, 7592, 102, 101, 102, 0]
    """
    if (sequences is None) == (target is None) or (source is None) != (target is None):
        raise UsageError("batch takes either sequences, or source and target together")
    first: Sequence[Tokens] = sequences if target is None else target  # type: ignore[assignment]
    lengths = _compute_lengths(first, "sequence" if target is None else "target")
    source_lengths = lengths if source is None else _compute_lengths(source, "source")
    if len(source_lengths) != len(lengths):
        raise UsageError(
            f"batch got {len(source_lengths)} sources and {len(lengths)} targets; give one source per target"
        )
    room = int(lengths.max()) if row is None else row
    source_room = room if source is None else int(source_lengths.max())
    if int(lengths.max()) > room:
        raise UsageError(f"sequence {int(lengths.argmax())} has {int(lengths.max())} tokens; a row holds {room}")
    place = next_fit(lengths, room, source_lengths, source_room)
    flat = Sequences(
        tokens=_flatten(first, lengths, "tokens"),
        offsets=compute_offsets(lengths),
        segments=None if segments is None else _flatten(segments, lengths, "segments"),
        targets=None if labels is None else _flatten(labels, lengths, "labels"),
        prefix=None if prefix is None else _check_prefix(prefix, lengths),
        source=None
        if source is None
        else Sequences(tokens=_flatten(source, source_lengths, "tokens"), offsets=compute_offsets(source_lengths)),
    )
    shape = BatchShape(rows=int(place[-1]) + 1, length=room, source=None if source is None else source_room)
    return lay_out(flat, place, shape)


def _compute_lengths(sequences: Sequence[Tokens], name: str) -> Ints:
    if not len(sequences):
        raise UsageError("batch got no sequences; give at least one")
    lengths = np.asarray([len(sequence) for sequence in sequences], dtype=np.int64)
    if (lengths == 0).any():
        raise UsageError(f"{name} {int((lengths == 0).argmax())} is empty; every sequence needs at least one token")
    return lengths


def next_fit(lengths: Ints, room: int, source_lengths: Ints | None = None, source_room: int = 0) -> Ints:
    """Return the row of each sequence, in order: the current row if both sides have room, else the next row."""
    source_lengths = np.zeros_like(lengths) if source_lengths is None else source_lengths
    rows, row, used_tokens, source_used = [], 0, 0, 0
    for length, source_length in zip(lengths.tolist(), source_lengths.tolist(), strict=True):
        if used_tokens + length > room or source_used + source_length > source_room:
            row += 1
            used_tokens = source_used = 0
        used_tokens += length
        source_used += source_length
        rows.append(row)
    return np.asarray(rows, dtype=np.int64)


def _flatten(values: Sequence[Tokens], lengths: Ints, name: str) -> Ints:
    """Concatenate the values of all sequences: one integer per token."""
    _check_count(len(values), len(lengths), name)
    for number, (value, length) in enumerate(zip(values, lengths.tolist(), strict=True)):
        if len(value) != length:
            raise UsageError(f"batch got {len(value)} {name} for the {length} tokens of sequence {number}")
    try:
        flat = np.concatenate([np.asarray(value) for value in values], dtype=np.int64, casting="same_kind")
    except (TypeError, ValueError, OverflowError):
        flat = None
    if flat is None or flat.shape != (lengths.sum(),):
        raise UsageError(f"batch needs {name} as one integer per token")
    return flat


def _check_prefix(values: Sequence[int], lengths: Ints) -> Ints:
    _check_count(len(values), len(lengths), "prefixes")
    for number, (value, length) in enumerate(zip(values, lengths.tolist(), strict=True)):
        if not 0 <= value <= length:
            raise UsageError(
                f"prefix {value} of sequence {number} must be between 0 and {length}, the length of the sequence"
            )
    return np.asarray(values, dtype=np.int64)


def _check_count(count: int, sequences: int, name: str) -> None:
    if count != sequences:
        raise UsageError(f"batch got {name} of {count} sequences for {sequences} sequences; give one for each")


ROW_TOKENS = {"cpu": 64, "cuda": 128}
"""Tokens of a row that holds several sequences: attention cost grows with it, padding shrinks."""


class PackedBatch(NamedTuple):
    """A batch, with the sequence and the row of each of its B sequences."""

    indices: Ints  # [B] in the input
    rows: Ints  # [B] ascending
    batch: Batch

    @property
    def cells(self) -> Ints:
        """Cell of each sequence [B]: the index of its outputs if the model has one output per cell."""
        return np.arange(len(self.rows)) + self.rows

    @property
    def token_positions(self) -> Ints:
        """Positions of all tokens in the batch without filler, in the order of `indices`."""
        return np.flatnonzero(self.batch.sequence.numpy() >= 0)


def pack_batches(sequences: Sequences, *, tokens: int, device: str = "cpu") -> Iterator[PackedBatch]:
    """Yield all sequences that are not empty in batches of about `tokens` tokens, for a type of device.

    With an encoder side rows are filled by the side with more tokens; the other side is as long as the fullest row.
    """
    source = sequences.source
    is_by_source = source is not None and len(source.tokens) > len(sequences.tokens)
    lengths = source.lengths if source is not None and is_by_source else sequences.lengths
    total = len(sequences.tokens) + (0 if source is None else len(source.tokens))
    share = int(lengths.sum()) / max(total, 1)  # tokens of the side that fills the rows
    step = 1 if device == "cpu" else 8  # NOTE: otherwise CUDA's attention copies the mask in every layer
    row = ROW_TOKENS.get(device, ROW_TOKENS["cuda"])
    for indices, rows, length in fill_rows(lengths, tokens=max(1, int(tokens * share)), row=row, step=step):
        yield PackedBatch(indices, rows, _lay_out(sequences.take(indices), rows, length, is_by_source))


def pack_in_order(sequences: Sequences) -> Batch:
    """Return one batch of all sequences in their order, with rows as long as the longest sequence or source."""
    return _fill_in_order(sequences)[1]


def pack_documents(sequences: Sequences, *, tokens: int) -> Iterator[PackedBatch]:
    """Yield all sequences in their order, in batches of about `tokens` tokens; those of a document are in one batch."""
    firsts = np.flatnonzero(sequences.chunks == 0)
    group = sequences.offsets[firsts] // tokens
    for start, end in pairwise([*firsts[np.append(True, np.diff(group) > 0)], len(sequences)]):
        indices = np.arange(start, end)
        yield PackedBatch(indices, *_fill_in_order(sequences.take(indices)))


def _fill_in_order(sequences: Sequences) -> tuple[Ints, Batch]:
    """Return the row of each sequence, and the batch."""
    lengths = sequences.lengths if sequences.source is None else sequences.source.lengths
    rows = next_fit(lengths, int(lengths.max()))
    return rows, _lay_out(sequences, rows, int(lengths.max()), sequences.source is not None)


def _lay_out(sequences: Sequences, rows: Ints, length: int, is_by_source: bool) -> Batch:
    """Return a batch with rows of `length` tokens on one side, and as short as possible on the other."""
    source_length = None
    if sequences.source is not None:
        other = sequences if is_by_source else sequences.source
        other_length = int(np.bincount(rows, weights=other.lengths).max())
        length, source_length = (other_length, length) if is_by_source else (length, other_length)
    return lay_out(sequences, rows, BatchShape(rows=int(rows[-1]) + 1, length=length, source=source_length))


def fill_rows(lengths: Ints, *, tokens: int, row: int, step: int = 1) -> Iterator[tuple[Ints, Ints, int]]:
    """Yield (indices, row of each, row length) of batches of about `tokens` tokens, for all lengths above 0.

    A row holds as many of the longest sequences as fit into `row` tokens, at least one; its length is a multiple of
    `step`, and no more than the fullest row of the batch needs.
    """
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    if not len(order):
        return
    lengths_left, starts = (part.tolist() for part in np.unique(lengths[order], return_index=True))
    waiting = {
        size: order[i:j].tolist() for size, i, j in zip(lengths_left, starts, [*starts[1:], len(order)], strict=True)
    }
    while lengths_left:
        row_length = -(-lengths_left[-1] * max(1, row // lengths_left[-1]) // step) * step
        indices, rows, filled_length = list[int](), list[int](), 0
        for number in range(max(1, tokens // row_length)):
            free_tokens = row_length
            while index := bisect_right(lengths_left, free_tokens):
                size = lengths_left[index - 1]
                ids = waiting[size]
                count = min(free_tokens // size, len(ids))
                indices += ids[-count:]
                rows += [number] * count
                free_tokens -= count * size
                del ids[-count:]
                if not ids:
                    del lengths_left[index - 1]
            filled_length = max(filled_length, row_length - free_tokens)
            if not lengths_left:
                break
        yield np.array(indices), np.array(rows), -(-filled_length // step) * step
