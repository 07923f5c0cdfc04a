"""Examples of a task as sequences: what is packed, what is remembered to read answers from, and what was lost."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.data.ragged import Ints, compute_offsets, compute_starts, spread
from pretune.data.sequences import PER_TOKEN, Sequences, join


@spec
class Counts:
    """What encoding gave and took away; nothing is lost that is not counted here."""

    examples: int = 0
    sequences: int = 0
    tokens: int = 0  # of both sides, special ones included
    longest: int = 0  # tokens of the longest sequence
    cut: int = 0  # examples that lost tokens
    lost: int = 0  # tokens lost
    empty: int = 0  # examples (options, of a choice) that are special tokens alone
    words_lost: int = 0  # words of a tagging task that have no token: cut off, or nothing is left of them
    answers_lost: int = 0  # answers that are in no window of their passage
    options_left: int = 0  # wrong options of a choice that are not trained on

    @property
    def truncated_share(self) -> float:
        """The share of examples that were cut."""
        return self.cut / max(self.examples, 1)

    def __add__(self, other: "Counts") -> "Counts":
        summed = {part.name: getattr(self, part.name) + getattr(other, part.name) for part in fields(self)}
        return Counts(**{**summed, "longest": max(self.longest, other.longest)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """S sequences in I items: an item is what lies in one row, and most are one sequence.

    A choice's options are one item while training. A long passage is several items of one example.
    """

    sequences: Sequences
    sizes: Ints  # [I] sequences of each item
    examples: Ints  # [S] which example a sequence is of
    counts: Counts
    alignment: Ints | None = (
        None  # [T] which word a token is the first of, or which token of its passage it is; else -1
    )

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def lengths(self) -> tuple[Ints, Ints | None]:
        """[I] tokens of each item, and on the encoder's side."""
        source = self.sequences.source
        return self._sum_by_item(self.sequences.lengths), None if source is None else self._sum_by_item(source.lengths)

    def take(self, items: Ints) -> Sequences:
        """The sequences of some items, in the order asked for, each with its example as its sample."""
        index = items
        if len(self.sizes) < len(self.examples):
            index = spread(compute_starts(self.sizes)[items], self.sizes[items])
        return replace(self.sequences.take(index), samples=self.examples[index])

    def _sum_by_item(self, lengths: Ints) -> Ints:
        return np.diff(compute_offsets(lengths)[compute_offsets(self.sizes)])


def build_items(
    sequences: Sequences, *, examples: Ints | None = None, sizes: Ints | None = None, counts: Counts, **extra: Any
) -> Items:
    """Items of some sequences; one each, and one for each example, where nothing else is said."""
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
    """The same in half the memory: what is kept for a whole run, and sent to workers, need not count beyond 2**31."""
    small: dict[str, Any] = {}
    for name in PER_TOKEN:
        values = getattr(sequences, name)
        if values is not None and values.dtype == np.int64:
            small[name] = cast(Ints, values.astype(np.int32))
    source = None if sequences.source is None else compact(sequences.source)
    return replace(sequences, **small, source=source)


def mix_items(parts: Sequence[Items]) -> Items:
    """Several tasks with one head, to be read together; each is a source of its own, for a mixture to weigh."""
    if not parts:
        raise UsageError("a mixture needs at least one task")
    sides = {part.sequences.source is None for part in parts}
    if len(sides) > 1:
        raise UsageError("these tasks are read on different sides of the model; mix only tasks with the same head")
    numbered = [
        replace(part.sequences, special=None, sources=np.full(len(part.sequences), number))
        for number, part in enumerate(parts)
    ]
    shifts = compute_starts(np.array([part.counts.examples for part in parts]))
    return Items(
        sequences=join(numbered),
        sizes=np.concatenate([part.sizes for part in parts]),
        examples=np.concatenate([part.examples + shift for part, shift in zip(parts, shifts, strict=True)]),
        counts=sum((part.counts for part in parts[1:]), start=parts[0].counts),
    )
