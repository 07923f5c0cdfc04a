"""Batches of texts for inference: sorted by length, packed without padding, in chunks.

The longest texts come first. Gaps in their rows are filled with the longest texts that fit, so that batches are full
and rows are as short as possible. Legend: S texts, T tokens.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.data.batch_shape import BatchShape
from pretune.data.layout import lay_out
from pretune.data.sequences import Ints, Sequences, spread
from pretune.text.template import TokenTemplate
from pretune.text.tokenizer import Tokenizer

CHUNK_CHARACTERS = 2**19
"""Maximum characters of a chunk, which is tokenized while the previous one is processed."""
CHUNK_TEXTS = 8192
"""Maximum texts of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTexts:
    """Tokenized texts, and how much was truncated."""

    sequences: Sequences  # with special tokens; a text may have no tokens at all
    truncated_texts: int
    truncated_tokens: int


def split_into_chunks(
    texts: Sequence[str], characters: int = CHUNK_CHARACTERS, max_texts: int = CHUNK_TEXTS
) -> list[Ints]:
    """Split texts into chunks of indices, the longest texts first."""
    sizes = np.array([len(text) for text in texts], dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    ends = np.cumsum(sizes[order] + 16) // characters
    parts = np.split(order, np.flatnonzero(np.diff(ends)) + 1) if len(order) else []
    return [part[i : i + max_texts] for part in parts for i in range(0, len(part), max_texts)]


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], length: int | None, *, without_special: bool = False
) -> EncodedTexts:
    """Tokenize texts with special tokens (unless `without_special`), truncated at the end to `length`."""
    encoding = tokenizer.encode_batch(texts)
    template = TokenTemplate() if without_special else tokenizer.template
    counts = np.diff(encoding.offsets)
    if length is not None and length <= template.special_count:
        raise UsageError(f"length must be > {template.special_count}, the special tokens, got {length}")
    kept_counts = counts if length is None else np.minimum(counts, length - template.special_count)
    starts = encoding.offsets[:-1]
    pieces, text_tokens = template.wrap(starts, kept_counts), encoding.ids[spread(starts, kept_counts)]
    return EncodedTexts(
        sequences=Sequences.from_pieces(pieces, text_tokens, segments=template.has_segments),
        truncated_texts=int((counts > kept_counts).sum()),
        truncated_tokens=int((counts - kept_counts).sum()),
    )


def pack_batches(sequences: Sequences, *, tokens: int, row: int, step: int = 1) -> Iterator[tuple[Ints, Ints, Batch]]:
    """Yield (indices, cell of each, batch) for all non-empty sequences, about `tokens` tokens per batch.

    A row holds as many of the longest sequences as fit into `row` tokens, at least one; its length is a multiple of
    `step`.
    """
    lengths = sequences.lengths
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    if not len(order):
        return
    lengths_left, starts = (
        part.tolist() for part in np.unique(lengths[order], return_index=True)
    )  # lengths that are left
    waiting = {
        size: order[i:j].tolist() for size, i, j in zip(lengths_left, starts, [*starts[1:], len(order)], strict=True)
    }
    while lengths_left:
        row_length = -(-lengths_left[-1] * max(1, row // lengths_left[-1]) // step) * step
        sequence_ids, rows = list[int](), list[int]()
        for number in range(max(1, tokens // row_length)):
            free_tokens = row_length
            while index := bisect_right(lengths_left, free_tokens):
                size = lengths_left[index - 1]
                ids = waiting[size]
                count = min(free_tokens // size, len(ids))
                sequence_ids += ids[-count:]
                rows += [number] * count
                free_tokens -= count * size
                del ids[-count:]
                if not ids:
                    del lengths_left[index - 1]
            if not lengths_left:
                break
        indices, row_numbers = np.array(sequence_ids), np.array(rows)
        shape = BatchShape(rows=int(row_numbers[-1]) + 1, length=row_length)
        yield indices, np.arange(len(indices)) + row_numbers, lay_out(sequences.take(indices), row_numbers, shape)
