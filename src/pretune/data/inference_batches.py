"""Batches for inference: sequences sorted by length and packed without padding, about a number of tokens per batch.

The longest sequences come first. Gaps in their rows are filled with the longest sequences that fit, so that batches are
full and rows are as short as possible. Each batch has the indices of its sequences, so that results are stored in input
order. Legend: S sequences, B sequences of a batch.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pretune.core.types import Batch
from pretune.data.layout import lay_out, next_fit
from pretune.data.plan import BatchShape
from pretune.data.sequences import Ints, Sequences

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
    lengths = sequences.lengths if sequences.source is None else sequences.source.lengths
    length = int(lengths.max())
    return _lay_out(sequences, next_fit(lengths, length), length, sequences.source is not None)


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
    `step`.
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
        indices, rows = list[int](), list[int]()
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
            if not lengths_left:
                break
        yield np.array(indices), np.array(rows), row_length
