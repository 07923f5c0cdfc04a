"""Denoising: corrupt a text with noise and reconstruct all of it.

Paper: Lewis et al. (2020), BART; by default its noise, permuted sentences and 30 % of the tokens in infilled spans
(span lengths count tokens; the released code counts words). Input: documents or blocks. Noises are applied in order,
see `pretune.objectives.noise`. The target is the whole sequence with its special tokens. Siblings: `span_corruption`
predicts the missing spans only; `masked_seq2seq` one span.

    text     <s> A B C . D E . </s>
    source   <s> D _ . A _ . </s>
    tokens   </s> <s> A B C . D E .
    targets  <s> A B C . D E . </s>
"""

from dataclasses import dataclass
from typing import Annotated

from pretune.core.config import NonEmpty, spec
from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import Counters, SampleLengths
from pretune.data.sequences import Ints, Sequences
from pretune.objectives.base import BaseCorruption, ModelShape, Objective, Vocabulary
from pretune.objectives.noise import Noise, SentencePermutation, TextInfilling
from pretune.objectives.seq2seq import (
    DecoderLayout,
    EncoderDecoderLayout,
    choose_layout,
    ensure_mask_token,
    get_sample_info,
)


@spec
class Denoising(Objective):
    """The original text, generated from a noisy version (BART)."""

    noises: Annotated[tuple[Noise, ...], NonEmpty()] = (SentencePermutation(), TextInfilling())
    prefix: bool = False  # a decoder has bidirectional attention over the input

    shapes = ("encoder-decoder", "decoder")

    @property
    def sentences(self) -> bool:
        return any(noise.sentences for noise in self.noises)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "DenoisingCorruption":
        needs_mask = any(noise.uses_mask for noise in self.noises)
        mask = ensure_mask_token(vocabulary).require("mask", self.name) if needs_mask else IGNORE_INDEX
        return DenoisingCorruption(self.noises, mask, choose_layout(vocabulary, shape, self.name, prefix=self.prefix))

    def to_evaluation(self) -> "Denoising":
        """Return the same noises at their default rates."""
        return Denoising(noises=tuple(type(noise)() for noise in self.noises), prefix=self.prefix)


@dataclass(frozen=True, slots=True)
class DenoisingCorruption(BaseCorruption):
    """Noisy source, original text as target."""

    noises: tuple[Noise, ...]
    mask: int
    layout: EncoderDecoderLayout | DecoderLayout

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self.layout.lengths(n, n)  # no noise makes a sequence longer

    @property
    def has_random_lengths(self) -> bool:
        return any(noise.removed_share for noise in self.noises)

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        """Return exact lengths: noises remove by the number of ordinary tokens and their random draws alone."""
        if rng is None:
            return self.lengths(lengths.lengths)
        left = lengths.lengths - lengths.special_counts
        for number, noise in enumerate(self.noises):
            left = noise.count_remaining(left, rng.derive(number))
        return self.layout.lengths(left + lengths.special_counts, lengths.lengths)

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        noisy = sequences
        for number, noise in enumerate(self.noises):
            noisy = noise.apply(noisy, self.mask, rng.derive(number))
        source = Sequences(tokens=noisy.tokens, offsets=noisy.offsets, segments=noisy.segments)
        labels = Sequences(tokens=sequences.tokens, offsets=sequences.offsets, **get_sample_info(sequences))
        return self.layout.combine(source, labels)

    def targets(self, tokens: int, sequences: int) -> int:
        # A decoder reads n + m tokens, n of them targets; m is at least what the noises leave of n, up to rounding.
        left = 1.0
        for noise in self.noises:
            left *= 1 - noise.removed_share
        return self.layout.targets(tokens, int((tokens + len(self.noises) * sequences) / (1 + left)) + 1)
