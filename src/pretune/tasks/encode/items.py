"""Items: the encoded examples of a task, with alignment to the text and truncation statistics."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.data.sequences import PER_TOKEN, Ints, Sequences, compute_offsets, compute_starts, join, spread


@spec
class Counts:
    """Statistics of an encoding; everything that is lost is counted here."""

    examples: int = 0
    sequences: int = 0
    tokens: int = 0  # of both sides, including special ones
    longest: int = 0  # tokens of the longest sequence
    cut: int = 0  # truncated examples
    lost: int = 0  # tokens lost by truncation
    empty: int = 0  # examples (of a choice: options) with special tokens only
    words_lost: int = 0  # words of a tagging task without a token: truncated, or empty after tokenization
    answers_lost: int = 0  # answers that are in no window of their passage
    options_left: int = 0  # wrong options of a choice that are not used in training

    @property
    def truncated_share(self) -> float:
        """Share of truncated examples."""
        return self.cut / max(self.examples, 1)

    def __add__(self, counts: "Counts") -> "Counts":
        sums = {part.name: getattr(self, part.name) + getattr(counts, part.name) for part in fields(self)}
        return Counts(**{**sums, "longest": max(self.longest, counts.longest)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """S sequences in I items; an item is laid out in one row, and is usually one sequence.

    In training the options of a choice are one item. A long passage is several items of one example.
    """

    sequences: Sequences
    sizes: Ints  # [I] sequences of each item
    examples: Ints  # [S] example of each sequence
    counts: Counts
    # [T] the word of which a token is the first, or its index in the passage; else -1
    alignment: Ints | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def lengths(self) -> tuple[Ints, Ints | None]:
        """Tokens of each item `[I]`, and on the encoder's side."""
        source = self.sequences.source
        return self._sum_by_item(self.sequences.lengths), None if source is None else self._sum_by_item(source.lengths)

    def take(self, items: Ints) -> Sequences:
        """Return the sequences of some items, in the given order, with their example as sample."""
        index = items
        if len(self.sizes) < len(self.examples):
            index = spread(compute_starts(self.sizes)[items], self.sizes[items])
        return replace(self.sequences.take(index), samples=self.examples[index])

    def _sum_by_item(self, lengths: Ints) -> Ints:
        return np.diff(compute_offsets(lengths)[compute_offsets(self.sizes)])


def build_items(
    sequences: Sequences, *, examples: Ints | None = None, sizes: Ints | None = None, counts: Counts, **extra: Any
) -> Items:
    """Build items of sequences; by default one item and one example per sequence."""
    number = np.arange(len(sequences)) if examples is None else examples
    return Items(
        sequences=compact(sequences),
        sizes=np.ones(len(sequences), dtype=np.int64) if sizes is None else sizes,
        examples=number,
        counts=replace(counts, sequences=len(sequences), **_measure_sequences(sequences)),
        **extra,
    )


def _measure_sequences(sequences: Sequences) -> dict[str, int]:
    sides = [sequences] if sequences.source is None else [sequences, sequences.source]
    return {
        "tokens": sum(len(side.tokens) for side in sides),
        "longest": max((int(side.lengths.max(initial=0)) for side in sides), default=0),
    }


def compact(sequences: Sequences) -> Sequences:
    """Return the sequences with int32 fields: half the memory, as they are kept for a run and sent to workers."""
    int32_fields: dict[str, Any] = {}
    for name in PER_TOKEN:
        values = getattr(sequences, name)
        if values is not None and values.dtype == np.int64:
            int32_fields[name] = cast(Ints, values.astype(np.int32))
    source = None if sequences.source is None else compact(sequences.source)
    return replace(sequences, **int32_fields, source=source)


def mix_items(parts: Sequence[Items]) -> Items:
    """Join several tasks with one head; each is a source, weighted by a mixture."""
    if not parts:
        raise UsageError("a mixture needs at least one task, got none")
    sides = {part.sequences.source is None for part in parts}
    if len(sides) > 1:
        raise UsageError("tasks with different heads cannot be mixed; choose tasks with the same head")
    sequences = [
        replace(part.sequences, special=None, sources=np.full(len(part.sequences), number))
        for number, part in enumerate(parts)
    ]
    first_examples = compute_starts(np.array([part.counts.examples for part in parts]))
    return Items(
        sequences=join(sequences),
        sizes=np.concatenate([part.sizes for part in parts]),
        examples=np.concatenate([part.examples + shift for part, shift in zip(parts, first_examples, strict=True)]),
        counts=sum((part.counts for part in parts[1:]), start=parts[0].counts),
    )
