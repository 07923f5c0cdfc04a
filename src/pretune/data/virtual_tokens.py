"""Virtual tokens: slots before each sequence for vectors that the model inserts (prompt tuning).

    a b c | d e          reserve(…, 2)          . . a b c | . . d e

Attention and layout treat slots as ordinary positions. Slots count as special tokens: they are never corrupted and
have no targets.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import PER_TOKEN, Sequences, compute_offsets

SLOT_VALUES: dict[str, Any] = {
    "tokens": 0, "special": True, "words": True, "sentences": True, "segments": 0, "targets": IGNORE_INDEX, "order": 0,
    "blanks": -1,
}  # fmt: skip
"""Field values of a slot: a valid token id that is never used, rank 0 (context), outside of masked spans."""


def reserve(sequences: Sequences, count: int) -> Sequences:
    """Return the sequences with `count` slots before each, or before each source if there is an encoder side.

    Raises `UsageError` if `count` is negative.
    """
    if count < 0:
        raise UsageError(f"number of slots must be >= 0, got {count}")
    if count == 0:
        return sequences
    if sequences.source is not None:
        return replace(sequences, source=reserve(sequences.source, count))
    lengths = sequences.lengths + count
    offsets = compute_offsets(lengths)
    is_text = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) >= count
    fields: dict[str, Any] = {"offsets": offsets}
    for name in PER_TOKEN:
        values: NDArray[Any] | None = getattr(sequences, name)
        if values is not None:
            fields[name] = np.full(len(is_text), SLOT_VALUES[name], dtype=values.dtype)
            fields[name][is_text] = values
    for name in ("prefix", "sides"):
        places: NDArray[Any] | None = getattr(sequences, name)
        if places is not None:
            fields[name] = np.where(places > 0, places + count, 0)
    return replace(sequences, **fields)
