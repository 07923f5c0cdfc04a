"""Supervised text-to-text: read a source, generate its target.

Paper: Raffel et al. (2020), T5, whose pre-training also mixes labelled tasks in (section 3.5.2): every task is a source
text and a target text. Input: parallel documents (`pretune.data.pairs`), prepared from parallel text or from a task
by its template. Nothing is random. Siblings: `prefix` splits any text at random; `mixture` reads pairs this way and
other documents with other objectives; `translation` masks both sides in an encoder.

    source   translate English to German: That is good. </s>
    tokens   <pad> Das ist gut .
    targets  Das   ist gut . </s>

A decoder reads both as one sequence, with the end token of the source between them and the loss on the target only.
"""

from dataclasses import dataclass

import numpy as np

from pretune.core.config import spec
from pretune.data.sampling import Counters, SampleLengths
from pretune.data.sequences import Ints, Sequences
from pretune.data.stream import Corruption
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.seq2seq import DecoderLayout, EncoderDecoderLayout, choose_layout, make_labels, split_source


@spec(kind="supervised")
class SupervisedSeq2seq(Objective):
    """Second side of a pair, generated from the first: labelled tasks as text-to-text, or translation (T5)."""

    prefix: bool = False  # a decoder has bidirectional attention over the source

    shapes = ("encoder-decoder", "decoder")
    pairs = "apart"

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "SupervisedCorruption":
        return SupervisedCorruption(choose_layout(vocabulary, shape, self.name, prefix=self.prefix))


@dataclass(frozen=True, slots=True)
class SupervisedCorruption(Corruption):
    """Sides as source and target; a sequence of one side is all source, without targets."""

    layout: EncoderDecoderLayout | DecoderLayout

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self.layout.lengths(n, np.zeros_like(n) if isinstance(self.layout, DecoderLayout) else n)

    has_random_lengths = False

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        return self.layout.lengths(lengths.first_lengths, lengths.second_lengths)

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        begin = sequences.lengths if sequences.sides is None else sequences.sides
        begin = np.where(begin > 0, begin, sequences.lengths)
        first = sequences.compute_positions() < np.repeat(begin, sequences.lengths)
        labels = make_labels(sequences, sequences.tokens[~first], sequences.lengths - begin)
        return self.layout.combine(split_source(sequences, first, begin), labels)
