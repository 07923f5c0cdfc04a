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
from pretune.data.epoch_order import SampleLengths
from pretune.data.ragged import Ints, compute_offsets
from pretune.data.sequences import Sequences
from pretune.objectives.base import ModelShape, PretrainingModel, Vocabulary, check_shape, count_vocabulary_targets
from pretune.objectives.seq2seq import DecoderLayout, EncoderDecoderLayout, choose_layout, get_sample_info


@spec
class Supervised:
    """The second side of a pair after its first: labelled tasks as text to text, or translation (T5)."""

    prefix: bool = False  # whether a decoder sees the source in both directions

    shapes: ClassVar[tuple[ModelShape, ...]] = ("encoder-decoder", "decoder")
    words: ClassVar[bool] = False
    sentences: ClassVar[bool] = False
    pairs: ClassVar[Literal["apart"]] = "apart"

    def bind(self, vocabulary: Vocabulary, shape: ModelShape) -> "SupervisedCorruption":
        check_shape("supervised", shape, self.shapes)
        return SupervisedCorruption(choose_layout(vocabulary, shape, "supervised", prefix=self.prefix))

    def to_evaluation(self) -> Self:
        return self

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": count_vocabulary_targets(batch)}

    def loss(self, model: PretrainingModel, batch: Batch) -> Loss:
        return model.loss(model.states(batch), batch)


@dataclass(frozen=True, slots=True)
class SupervisedCorruption:
    """The sides as they are; of a sequence that has only one, all is source and nothing is asked."""

    layout: EncoderDecoderLayout | DecoderLayout
    copies: int | None = None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self.layout.lengths(n, np.zeros_like(n) if isinstance(self.layout, DecoderLayout) else n)

    @property
    def has_random_lengths(self) -> bool:
        return False

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        return self.layout.lengths(lengths.first_lengths, lengths.second_lengths)

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        begin = sequences.lengths if sequences.sides is None else sequences.sides
        begin = np.where(begin > 0, begin, sequences.lengths)
        first = sequences.compute_positions() < np.repeat(begin, sequences.lengths)
        source = Sequences(
            tokens=sequences.tokens[first],
            offsets=compute_offsets(begin),
            segments=None if sequences.segments is None else sequences.segments[first],
        )
        labels = Sequences(
            tokens=sequences.tokens[~first],
            offsets=compute_offsets(sequences.lengths - begin),
            **get_sample_info(sequences),
        )
        return self.layout.combine(source, labels)

    def targets(self, tokens: int, sequences: int) -> int:
        return tokens  # how much of a pair is its target, only the pair knows
