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
from pretune.data.sequences import Ints, Sequences, compute_offsets, spread
from pretune.text.templates import SpecialPart
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
    parts = tokenizer.template.single
    text_index = next(i for i, part in enumerate(parts) if not isinstance(part, SpecialPart))
    prefix, suffix = (
        (() if without_special else parts[:text_index]),
        (() if without_special else parts[text_index + 1 :]),
    )
    counts = np.diff(encoding.offsets)
    max_text_tokens = None if length is None else length - len(prefix) - len(suffix)
    if max_text_tokens is not None and max_text_tokens < 1:
        raise UsageError(f"length must be > {len(prefix) + len(suffix)}, the special tokens, got {length}")
    kept_counts = counts if max_text_tokens is None else np.minimum(counts, max_text_tokens)
    offsets = compute_offsets(kept_counts + len(prefix) + len(suffix))
    tokens, segments = np.empty(offsets[-1], dtype=np.int64), np.zeros(offsets[-1], dtype=np.int64)
    text_positions = spread(offsets[:-1] + len(prefix), kept_counts)
    tokens[text_positions] = encoding.ids[spread(encoding.offsets[:-1], kept_counts)]
    segments[text_positions] = parts[text_index].segment
    for column, part in [*enumerate(prefix), *((i - len(suffix), part) for i, part in enumerate(suffix))]:
        positions = (offsets[:-1] if column >= 0 else offsets[1:]) + column
        assert isinstance(part, SpecialPart)
        tokens[positions], segments[positions] = part.token, part.segment
    return EncodedTexts(
        sequences=Sequences(tokens=tokens, offsets=offsets, segments=segments if segments.any() else None),
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
