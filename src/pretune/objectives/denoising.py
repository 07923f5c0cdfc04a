"""Denoising: spoil a text in any way, and ask for all of it as it was.

Paper: Lewis et al. (2020), BART; by default its own mixture, sentences in a random order and 30 % of the tokens in
infilled spans (lengths are counted in tokens; the released code counts words). Input: documents or blocks. Noises are
used in the order given, see `noises`. The target is the whole sequence with its special tokens. Siblings:
`span_corruption` asks for what is missing only; `masked_seq2seq` for one span.

    text     <s> A B C . D E . </s>
    source   <s> D _ . A _ . </s>
    tokens   </s> <s> A B C . D E .
    targets  <s> A B C . D E . </s>
"""

from dataclasses import dataclass

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.counters import Counters
from pretune.data.epoch_order import SampleLengths
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
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
    """The whole text out of a spoiled one (BART)."""

    noises: tuple[Noise, ...] = (SentencePermutation(), TextInfilling())
    prefix: bool = False  # whether a decoder sees the input in both directions

    shapes = ("encoder-decoder", "decoder")

    def __post_init__(self) -> None:
        if not self.noises:
            raise UsageError("denoising needs one noise or more, found none")

    @property
    def sentences(self) -> bool:
        return any(noise.sentences for noise in self.noises)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "DenoisingCorruption":
        needed = any(noise.uses_mask for noise in self.noises)
        mask = ensure_mask_token(vocabulary).require("mask", self.name) if needed else IGNORE_INDEX
        return DenoisingCorruption(self.noises, mask, choose_layout(vocabulary, shape, self.name, prefix=self.prefix))

    def to_evaluation(self) -> "Denoising":
        """The same noises at their usual rates, whatever the training."""
        return Denoising(noises=tuple(type(noise)() for noise in self.noises), prefix=self.prefix)


@dataclass(frozen=True, slots=True)
class DenoisingCorruption(BaseCorruption):
    """One noise after another, then the text as it was."""

    noises: tuple[Noise, ...]
    mask: int
    layout: EncoderDecoderLayout | DecoderLayout

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self.layout.lengths(n, n)  # no noise makes a sequence longer

    @property
    def has_random_lengths(self) -> bool:
        return any(noise.removed_share for noise in self.noises)

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        """Noises draw how much they leave from what there is and from nothing else."""
        if rng is None:
            return self.lengths(lengths.lengths)
        left = lengths.lengths - lengths.special_counts
        for number, noise in enumerate(self.noises):
            left = noise.count_remaining(left, rng.derive(number))
        return self.layout.lengths(left + lengths.special_counts, lengths.lengths)

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        spoiled = sequences
        for number, noise in enumerate(self.noises):
            spoiled = noise.apply(spoiled, self.mask, rng.derive(number))
        source = Sequences(tokens=spoiled.tokens, offsets=spoiled.offsets, segments=spoiled.segments)
        labels = Sequences(tokens=sequences.tokens, offsets=sequences.offsets, **get_sample_info(sequences))
        return self.layout.combine(source, labels)

    def targets(self, tokens: int, sequences: int) -> int:
        # Of a decoder's n + m tokens n are targets, and m is at least what the noises leave of n, to the token.
        left = 1.0
        for noise in self.noises:
            left *= 1 - noise.removed_share
        return self.layout.targets(tokens, int((tokens + len(self.noises) * sequences) / (1 + left)) + 1)
