"""Text to text: read a source, write the target that belongs to it.

Paper: Raffel et al. (2020), T5, whose pre-training also mixes labelled tasks in (section 3.5.2): every task is a source
and a target in words. Input: documents of two sides (`pretune.data.parallel`), prepared from parallel text or from a
task by its template. Nothing is drawn. Siblings: `prefix` parts any text at random; `mixture` reads pairs this way and
other documents by other objectives; `translation` has an encoder read both sides.

    source   translate English to German: That is good. </s>
    tokens   <pad> Das ist gut .
    targets  Das   ist gut . </s>

A decoder reads both as one sequence, the end token of the source between them, and only the target counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from torch import Tensor

from pretune.core.config import spec
from pretune.core.types import Batch, Loss
from pretune.data.counters import Counters
from pretune.data.epoch_order import Known
from pretune.data.ragged import Ints, bounds
from pretune.data.sequences import Sequences
from pretune.objectives.base import ModelShape, Reader, Vocabulary, check_shape, vocabulary_count
from pretune.objectives.seq2seq import OneSide, TwoSides, known, side


@spec
class Supervised:
    """The second side of a pair after its first: labelled tasks as text to text, or translation (T5)."""

    prefix: bool = False  # whether a decoder sees the source in both directions

    shapes: ClassVar[tuple[ModelShape, ...]] = ("encoder-decoder", "decoder")
    words: ClassVar[bool] = False
    sentences: ClassVar[bool] = False
    pairs: ClassVar[Literal["apart"]] = "apart"

    def open(self, vocabulary: Vocabulary, shape: ModelShape) -> "SupervisedLesson":
        check_shape("supervised", shape, self.shapes)
        return SupervisedLesson(side(vocabulary, shape, "supervised", prefix=self.prefix))

    def evaluation(self) -> Self:
        return self

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": vocabulary_count(batch)}

    def loss(self, model: Reader, batch: Batch) -> Loss:
        return model.loss(model.states(batch), batch)


@dataclass(frozen=True, slots=True)
class SupervisedLesson:
    """The sides as they are; of a sequence that has only one, all is source and nothing is asked."""

    sides: TwoSides | OneSide
    copies: int | None = None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self.sides.lengths(n, np.zeros_like(n) if isinstance(self.sides, OneSide) else n)

    @property
    def varies(self) -> bool:
        return False

    def planned(self, known: Known, rng: Counters | None) -> tuple[Ints, Ints | None]:
        return self.sides.lengths(known.first, known.second)

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        begin = sequences.lengths if sequences.sides is None else sequences.sides
        begin = np.where(begin > 0, begin, sequences.lengths)
        first = sequences.positions() < np.repeat(begin, sequences.lengths)
        source = Sequences(
            tokens=sequences.tokens[first],
            offsets=bounds(begin),
            segments=None if sequences.segments is None else sequences.segments[first],
        )
        labels = Sequences(
            tokens=sequences.tokens[~first], offsets=bounds(sequences.lengths - begin), **known(sequences)
        )
        return self.sides.teach(source, labels)

    def targets(self, tokens: int, sequences: int) -> int:
        return tokens  # how much of a pair is its target, only the pair knows
