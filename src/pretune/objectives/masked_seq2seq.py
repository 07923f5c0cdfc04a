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

from dataclasses import dataclass

import numpy as np

from pretune.core.config import spec
from pretune.data.counters import Counters
from pretune.data.ragged import Ints, compute_offsets, compute_starts, spread
from pretune.data.sequences import Sequences
from pretune.objectives.base import BaseCorruption, ModelShape, Objective, Vocabulary
from pretune.objectives.mask_replacement import MaskReplacement, ReplacementShares, check_shares
from pretune.objectives.segment_sampling import draw_bits_at, find_ordinary_tokens, round_randomly
from pretune.objectives.seq2seq import EncoderDecoderLayout, ensure_mask_token, get_sample_info


@spec
class MaskedSeq2seq(Objective):
    """One stretch of half the text, masked in the encoder and said by the decoder (MASS)."""

    rate: float = 0.5
    split: ReplacementShares = (0.8, 0.1, 0.1)  # masked, replaced by a random token, kept

    shapes = ("encoder-decoder",)

    def __post_init__(self) -> None:
        check_shares(self.rate, self.split, None)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "MaskedSeq2seqCorruption":
        disguise = MaskReplacement.from_vocabulary(self.split, ensure_mask_token(vocabulary), self.name)
        return MaskedSeq2seqCorruption(self.rate, disguise, EncoderDecoderLayout(vocabulary.require_start(self.name)))

    def to_evaluation(self) -> "MaskedSeq2seq":
        """Half of the text, 80/10/10, whatever the training."""
        return MaskedSeq2seq()


@dataclass(frozen=True, slots=True)
class MaskedSeq2seqCorruption(BaseCorruption):
    """One stretch of each sequence: in disguise on the encoder's side, itself on the decoder's."""

    rate: float
    replacement: MaskReplacement
    layout: EncoderDecoderLayout

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self.layout.lengths(n, np.ceil(self.rate * n).astype(np.int64))

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        index, sizes = find_ordinary_tokens(sequences)
        counts = np.maximum(round_randomly(self.rate * sizes, rng.uniform(0)), np.minimum(sizes, 1))
        start = np.minimum((rng.uniform(1) * (sizes - counts + 1)).astype(np.int64), sizes - counts)
        chosen = index[spread(compute_starts(sizes) + start, counts)]
        tokens = sequences.tokens.copy()
        tokens[chosen] = self.replacement.replace_tokens(tokens[chosen], draw_bits_at(rng, 2, sequences, chosen))
        source = Sequences(tokens=tokens, offsets=sequences.offsets, segments=sequences.segments)
        labels = Sequences(
            tokens=sequences.tokens[chosen], offsets=compute_offsets(counts), **get_sample_info(sequences)
        )
        return self.layout.combine(source, labels)
