"""Streams that the tests of feeding read: a toy lesson on toy shards."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from pretune.data.plan import BatchShape
from pretune.data.samples import Documents
from pretune.data.sampling import Counters
from pretune.data.sequences import Ints, Sequences, compute_offsets
from pretune.data.shards import Shards
from pretune.data.stream import BatchStream, Corruption
from tests.data.corpora import FRAMES, Masking, random_documents, write


class Halves(Corruption):
    """The encoder reads the first half of a sequence, the decoder all of it."""

    copies: int | None = None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return (n + 1) // 2, n

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        half = (sequences.lengths + 1) // 2
        first = sequences.compute_positions() < np.repeat(half, sequences.lengths)
        source = Sequences(tokens=sequences.tokens[first], offsets=compute_offsets(half))
        return replace(sequences, targets=sequences.tokens, source=source)


def stream(folder: Path, lesson: Masking | Halves, *, rows: int = 8, length: int = 32) -> BatchStream:
    """A stream of four rows or more out of a corpus of a few hundred documents."""
    if not folder.exists():
        folder.mkdir()
        write(folder, random_documents(0, 300))
    samples = Documents(limit=length).open(Shards.open(folder), FRAMES["around"])
    source = length if isinstance(lesson, Halves) else None
    return BatchStream(
        samples, BatchShape(rows=rows, length=length, source=source), seed=3, corruption=lesson, words=True
    )
