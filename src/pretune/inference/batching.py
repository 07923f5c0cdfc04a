"""Texts to batches, for models that are only asked: sorted by length, packed without padding, in chunks.

The longest texts come first. The gaps that they leave in their rows are filled with the longest that fit, so that a
batch is full and its rows are no longer than they have to be. Legend: S texts, T tokens.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.data.batch_shape import BatchShape
from pretune.data.layout import lay_out
from pretune.data.ragged import Ints, compute_offsets, spread
from pretune.data.sequences import Sequences
from pretune.text.templates import SpecialPart
from pretune.text.tokenizer import Tokenizer

CHUNK_CHARACTERS = 2**19
"""Characters that are cut into tokens at a time, while the texts before them are read."""
CHUNK_TEXTS = 8192
"""… and texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTexts:
    """Texts as a model reads them, and what was lost on the way."""

    sequences: Sequences  # with its special tokens; a text may have none at all
    truncated_texts: int  # texts that were too long
    truncated_tokens: int  # tokens of theirs


def split_into_chunks(
    texts: Sequence[str], characters: int = CHUNK_CHARACTERS, max_texts: int = CHUNK_TEXTS
) -> list[Ints]:
    """The numbers of texts that go together, the longest texts first."""
    sizes = np.array([len(text) for text in texts], dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    ends = np.cumsum(sizes[order] + 16) // characters
    parts = np.split(order, np.flatnonzero(np.diff(ends)) + 1) if len(order) else []
    return [part[i : i + max_texts] for part in parts for i in range(0, len(part), max_texts)]


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], length: int | None, *, without_special: bool = False
) -> EncodedTexts:
    """The tokens of texts with the special ones around them, cut at the end to `length`; `bare`: without those."""
    found = tokenizer.encode_batch(texts)
    parts = tokenizer.template.single
    at = next(i for i, part in enumerate(parts) if not isinstance(part, SpecialPart))
    before, after = (() if without_special else parts[:at]), (() if without_special else parts[at + 1 :])
    counts = np.diff(found.offsets)
    room = None if length is None else length - len(before) - len(after)
    if room is not None and room < 1:
        raise UsageError(f"length {length} leaves no room for text beside {len(before) + len(after)} special tokens")
    kept = counts if room is None else np.minimum(counts, room)
    offsets = compute_offsets(kept + len(before) + len(after))
    tokens, segments = np.empty(offsets[-1], dtype=np.int64), np.zeros(offsets[-1], dtype=np.int64)
    inside = spread(offsets[:-1] + len(before), kept)
    tokens[inside] = found.ids[spread(found.offsets[:-1], kept)]
    segments[inside] = parts[at].segment
    for column, part in [*enumerate(before), *((i - len(after), part) for i, part in enumerate(after))]:
        places = (offsets[:-1] if column >= 0 else offsets[1:]) + column
        assert isinstance(part, SpecialPart)
        tokens[places], segments[places] = part.token, part.segment
    return EncodedTexts(
        sequences=Sequences(tokens=tokens, offsets=offsets, segments=segments if segments.any() else None),
        truncated_texts=int((counts > kept).sum()),
        truncated_tokens=int((counts - kept).sum()),
    )


def pack_batches(sequences: Sequences, *, tokens: int, row: int, step: int = 1) -> Iterator[tuple[Ints, Ints, Batch]]:
    """Every sequence that has a token: their numbers, the cell of each, and the batch of at most about `tokens`.

    A row holds as many of the longest as fit into `row` tokens, and at least one; its length is a multiple of `step`.
    """
    lengths = sequences.lengths
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    if not len(order):
        return
    there, first = (part.tolist() for part in np.unique(lengths[order], return_index=True))  # lengths that are left
    waiting = {size: order[i:j].tolist() for size, i, j in zip(there, first, [*first[1:], len(order)], strict=True)}
    while there:
        room = -(-there[-1] * max(1, row // there[-1]) // step) * step
        placed, rows = list[int](), list[int]()
        for number in range(max(1, tokens // room)):
            left = room
            while at := bisect_right(there, left):
                size = there[at - 1]
                ids = waiting[size]
                fit = min(left // size, len(ids))
                placed += ids[-fit:]
                rows += [number] * fit
                left -= fit * size
                del ids[-fit:]
                if not ids:
                    del there[at - 1]
            if not there:
                break
        which, places = np.array(placed), np.array(rows)
        shape = BatchShape(rows=int(places[-1]) + 1, length=room)
        yield which, np.arange(len(which)) + places, lay_out(sequences.take(which), places, shape)
