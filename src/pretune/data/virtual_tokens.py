"""Slots: room before each sequence that no token of the text takes, for vectors that a model puts there itself.

    a b c | d e          reserve(…, 2)          . . a b c | . . d e

Slots are ordinary positions to attention and to the layout. They count as special tokens: nothing corrupts them and
nothing is predicted there.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.ragged import compute_offsets
from pretune.data.sequences import PER_TOKEN, Sequences

SLOT_VALUES: dict[str, Any] = {
    "tokens": 0, "special": True, "words": True, "sentences": True, "segments": 0, "targets": IGNORE_INDEX, "order": 0,
    "blanks": -1,
}  # fmt: skip
"""Field values of a slot: a valid token that is never read, of rank 0 (context), in no masked span."""


def reserve(sequences: Sequences, count: int) -> Sequences:
    """`count` slots before each sequence; before each source, where there is one: there the encoder reads."""
    if count < 0:
        raise UsageError(f"count of slots must be >= 0, got {count}")
    if sequences.source is not None:
        return replace(sequences, source=reserve(sequences.source, count))
    lengths = sequences.lengths + count
    offsets = compute_offsets(lengths)
    text = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) >= count
    fields: dict[str, Any] = {"offsets": offsets}
    for name in PER_TOKEN:
        values: NDArray[Any] | None = getattr(sequences, name)
        if values is not None:
            fields[name] = np.full(len(text), SLOT_VALUES[name], dtype=values.dtype)
            fields[name][text] = values
    for name in ("prefix", "sides"):
        places: NDArray[Any] | None = getattr(sequences, name)
        if places is not None:
            fields[name] = np.where(places > 0, places + count, 0)
    return replace(sequences, **fields)
