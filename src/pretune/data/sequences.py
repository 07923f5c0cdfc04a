"""`Sequences`: many sequences as flat arrays, on their way from the shards through corruption to a batch."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.data.ragged import Bools, Ints, compute_offsets, compute_starts, spread

PER_TOKEN = ("tokens", "special", "words", "sentences", "segments", "targets", "order", "blanks")
PER_SEQUENCE = ("samples", "epochs", "sources", "sides", "prefix", "view", "labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """S sequences of T tokens in all, and what is known of each token and each sequence; None: nothing is.

    Words and sentences are marked at their first token. A special token, and the first token of a cut, starts both, so
    that `np.cumsum` of either numbers groups that never reach over a special token or into the next sequence.
    """

    tokens: Ints  # [T]
    offsets: Ints  # [S + 1]
    special: Bools | None = None  # [T] of the template: never to be corrupted
    words: Bools | None = None  # [T] starts a word
    sentences: Bools | None = None  # [T] starts a sentence
    segments: Ints | None = None  # [T]
    targets: Ints | None = None  # [T] what the head should say there, IGNORE where nothing
    order: Ints | None = None  # [T] factorisation rank
    blanks: Ints | None = None  # [T] the number of the masked span inside its sequence, -1 outside
    samples: Ints | None = None  # [S] which sample it is: with the epoch, the counter of all that is random about it
    epochs: Ints | None = None  # [S] for the how-manieth time the sample is read
    sources: Ints | None = None  # [S] which source it is from
    sides: Ints | None = None  # [S] where its second side begins, 0 where it has only one
    prefix: Ints | None = None  # [S] how many first tokens all of it may see
    view: Ints | None = None  # [S] mask kind
    labels: Ints | None = None  # [S] of the sequence as a whole, IGNORE where it has none
    source: "Sequences | None" = None  # what the encoder reads, where there is one; as many sequences

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """[S]"""
        return np.diff(self.offsets)

    def find_owners(self) -> Ints:
        """[T] the sequence each token is in."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def compute_positions(self) -> Ints:
        """[T] each token's place in its sequence."""
        return np.arange(len(self.tokens)) - np.repeat(self.offsets[:-1], self.lengths)

    def take(self, selection: Ints) -> "Sequences":
        """Some of the sequences, in the order asked for."""
        lengths = self.lengths[selection]
        index = spread(self.offsets[:-1][selection], lengths)
        parts: dict[str, Any] = {"offsets": compute_offsets(lengths)}
        for name, rows in [*((name, index) for name in PER_TOKEN), *((name, selection) for name in PER_SEQUENCE)]:
            value: NDArray[Any] | None = getattr(self, name)
            parts[name] = None if value is None else value[rows]
        return Sequences(**parts, source=None if self.source is None else self.source.take(selection))


def join(parts: Sequence[Sequences]) -> Sequences:
    """Several of them as one; what one lacks, all lack."""
    columns: dict[str, Any] = {}
    for field in fields(Sequences):
        values = [getattr(part, field.name) for part in parts]
        if field.name == "offsets":
            shifts = compute_starts(np.array([len(part.tokens) for part in parts]))
            shifted_offsets = [part.offsets[1:] + shift for part, shift in zip(parts, shifts, strict=True)]
            columns["offsets"] = np.concatenate([np.zeros(1, dtype=np.int64), *shifted_offsets])
        elif any(value is None for value in values):
            columns[field.name] = None
        else:
            columns[field.name] = join(values) if field.name == "source" else np.concatenate(values)
    return Sequences(**columns)
