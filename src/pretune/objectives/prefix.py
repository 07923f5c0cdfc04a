"""Prefix language modelling: read the first part of a text in both directions, predict the rest token by token.

Papers: Liu et al. (2018); as one of the objectives compared by Raffel et al. (2020, section 3.3.1). Input: documents or
blocks. The first part has between one ordinary token and all but one, each number equally likely; a text of a single
one is all first part. Siblings: `causal` predicts all of it; `span_corruption` hides spans in the middle.

    decoder           tokens   Thank you  for  inviting me      prefix 2: those two see each other
                      targets    -   for inviting  me   -
    encoder-decoder   source   Thank you </s>
                      tokens   <pad> for inviting me
                      targets  for inviting me </s>
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from torch import Tensor

from pretune.core.config import spec
from pretune.core.types import IGNORE, Batch, Loss
from pretune.data.counters import Counters
from pretune.data.epoch_order import Known
from pretune.data.ragged import Ints, begins, bounds
from pretune.data.sequences import Sequences
from pretune.objectives.base import ModelShape, Reader, Vocabulary, check_shape, spare, vocabulary_count
from pretune.objectives.causal import next_tokens
from pretune.objectives.segment_sampling import ordinary
from pretune.objectives.seq2seq import TwoSides, closed, known

UNEQUAL = 2.0
"""The sum of squared lengths of a batch's sequences, in multiples of what it were if they were equally long."""


@spec
class Prefix:
    """The rest of a text after a first part that sees itself in both directions (prefix LM)."""

    shapes: ClassVar[tuple[ModelShape, ...]] = ("encoder-decoder", "decoder")
    words: ClassVar[bool] = False
    sentences: ClassVar[bool] = False
    pairs: ClassVar[None] = None

    def open(self, vocabulary: Vocabulary, shape: ModelShape) -> "PrefixLesson | SplitLesson":
        check_shape("prefix", shape, self.shapes)
        return PrefixLesson() if shape == "decoder" else SplitLesson(TwoSides(vocabulary.first("prefix")))

    def evaluation(self) -> Self:
        return self

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": vocabulary_count(batch)}

    def loss(self, model: Reader, batch: Batch) -> Loss:
        return model.loss(model.states(batch), batch)


@dataclass(frozen=True, slots=True)
class PrefixLesson:
    """For a decoder: the sequence as it is, with targets behind the prefix."""

    copies: int | None = None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return n, None

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        prefix = split_points(sequences, rng)
        given = sequences.positions() < np.repeat(prefix, sequences.lengths) - 1  # the last of the prefix says the next
        return replace(sequences, targets=np.where(given, IGNORE, next_tokens(sequences)), prefix=prefix)

    def targets(self, tokens: int, sequences: int) -> int:
        # Half of each sequence and its end; a number that is drawn evenly out of n has the variance n * n / 12.
        return spare((tokens + sequences) / 2, UNEQUAL * tokens**2 / (12 * max(sequences, 1)), tokens)


@dataclass(frozen=True, slots=True)
class SplitLesson:
    """For an encoder-decoder: the first part is the source, closed as the whole was; the rest is the target."""

    sides: TwoSides
    copies: int | None = None

    @property
    def varies(self) -> bool:
        return True

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self.sides.lengths(n, n - 1)

    def planned(self, known: Known, rng: Counters | None) -> tuple[Ints, Ints | None]:
        if rng is None:
            return self.lengths(known.lengths)
        n, ordinary = known.lengths, known.lengths - known.special
        given = drawn_points(ordinary, rng) + 1
        # Special tokens may all stand before what is given and its end, or none of them.
        source, target = given + known.special, n - given
        return self.sides.lengths(np.where(ordinary > 0, source, n), np.where(ordinary > 0, target, 0))

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        prefix = split_points(sequences, rng)
        first = sequences.positions() < np.repeat(prefix, sequences.lengths)
        closing = closed(sequences) & (prefix < sequences.lengths)
        shown = first.copy()
        shown[sequences.offsets[1:][closing] - 1] = True
        source = Sequences(
            tokens=sequences.tokens[shown],
            offsets=bounds(prefix + closing),
            segments=None if sequences.segments is None else sequences.segments[shown],
        )
        labels = Sequences(
            tokens=sequences.tokens[~first], offsets=bounds(sequences.lengths - prefix), **known(sequences)
        )
        return self.sides.teach(source, labels)

    def targets(self, tokens: int, sequences: int) -> int:
        return tokens


def split_points(sequences: Sequences, rng: Counters) -> Ints:
    """[S] how many first tokens of each are given: up to an ordinary one that is drawn, all where there is none."""
    index, sizes = ordinary(sequences)
    if not len(index):
        return sequences.lengths
    last = index[np.minimum(begins(sizes) + drawn_points(sizes, rng), len(index) - 1)]
    return np.where(sizes > 0, last + 1 - sequences.offsets[:-1], sequences.lengths)


def drawn_points(sizes: Ints, rng: Counters) -> Ints:
    """[S] which of so many ordinary tokens is the last that is given: any but the last of all."""
    drawn = (rng.uniform(0) * (sizes - 1)).astype(np.int64)
    return np.clip(drawn, 0, np.maximum(sizes - 2, 0))
