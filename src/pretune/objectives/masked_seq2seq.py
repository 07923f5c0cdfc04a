"""Masked sequence to sequence: hide one long stretch in the encoder, let the decoder say it.

Paper: Song et al. (2019), MASS. Input: sentences or documents. One stretch of half of the ordinary tokens, anywhere
with equal chance, is shown to the encoder as masks (80 %), random tokens (10 %) and itself (10 %), as in the paper's
section 4.1. The decoder reads the stretch shifted by one and predicts nothing else, not even the end. Where the
vocabulary has sentinels and no mask, the first sentinel is the mask. Siblings: `masked` predicts scattered tokens in an
encoder; `denoising` asks for the whole text.

    text     The cat  sat  on  the mat </s>
    source   The  _    _    _  the mat </s>
    tokens   <s> cat  sat
    targets  cat sat  on

NOTE: the decoder's positions count from 0 at the stretch; in the paper they are those in the sentence. The decoder
learns where it is from the encoder's masks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from pretune.core.config import spec
from pretune.core.types import Batch, Loss
from pretune.data.counters import Counters
from pretune.data.ragged import Ints, begins, bounds, spread
from pretune.data.sequences import Sequences
from pretune.objectives.base import ModelShape, Reader, Vocabulary, check_shape, vocabulary_count
from pretune.objectives.mask_replacement import Disguise, Split, check_shares
from pretune.objectives.segment_sampling import bits_at, ordinary, rounded
from pretune.objectives.seq2seq import TwoSides, known, masking


@spec
class MaskedSeq2seq:
    """One stretch of half the text, masked in the encoder and said by the decoder (MASS)."""

    rate: float = 0.5
    split: Split = (0.8, 0.1, 0.1)  # masked, replaced by a random token, kept

    shapes: ClassVar[tuple[ModelShape, ...]] = ("encoder-decoder",)
    words: ClassVar[bool] = False
    sentences: ClassVar[bool] = False
    pairs: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_shares(self.rate, self.split, None)

    def open(self, vocabulary: Vocabulary, shape: ModelShape) -> "MaskedSeq2seqLesson":
        check_shape("masked_seq2seq", shape, self.shapes)
        disguise = Disguise.of(self.split, masking(vocabulary), "masked_seq2seq")
        return MaskedSeq2seqLesson(self.rate, disguise, TwoSides(vocabulary.first("masked_seq2seq")))

    def evaluation(self) -> "MaskedSeq2seq":
        """Half of the text, 80/10/10, whatever the training."""
        return MaskedSeq2seq()

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": vocabulary_count(batch)}

    def loss(self, model: Reader, batch: Batch) -> Loss:
        return model.loss(model.states(batch), batch)


@dataclass(frozen=True, slots=True)
class MaskedSeq2seqLesson:
    """One stretch of each sequence: in disguise on the encoder's side, itself on the decoder's."""

    rate: float
    disguise: Disguise
    sides: TwoSides
    copies: int | None = None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self.sides.lengths(n, np.ceil(self.rate * n).astype(np.int64))

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        index, sizes = ordinary(sequences)
        counts = np.maximum(rounded(self.rate * sizes, rng.uniform(0)), np.minimum(sizes, 1))
        start = np.minimum((rng.uniform(1) * (sizes - counts + 1)).astype(np.int64), sizes - counts)
        chosen = index[spread(begins(sizes) + start, counts)]
        tokens = sequences.tokens.copy()
        tokens[chosen] = self.disguise.tokens(tokens[chosen], bits_at(rng, 2, sequences, chosen))
        source = Sequences(tokens=tokens, offsets=sequences.offsets, segments=sequences.segments)
        labels = Sequences(tokens=sequences.tokens[chosen], offsets=bounds(counts), **known(sequences))
        return self.sides.teach(source, labels)

    def targets(self, tokens: int, sequences: int) -> int:
        return tokens
