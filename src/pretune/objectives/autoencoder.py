"""Sequence autoencoder: read a text, then generate it again.

Paper: Dai and Le (2015), semi-supervised sequence learning: the weights start a classifier (SA-LSTM). A recurrent
decoder is encoder and decoder in one, with the same weights, as in the paper: it reads the text twice as one sequence,
and has a loss on the second reading only. Its state after the first is all it knows of the text. Input: sentences,
documents or blocks, with an end token in the template where there is one. Nothing is random. Siblings: `causal` reads
the text once; `denoising` reads a noisy text.

    text             A B C </s>
    decoder          tokens   A B  C  </s> A B C </s>
                     targets  - -  -   A   B C </s> -
    encoder-decoder  source   A B  C  </s>
                     tokens   <s> A B C
                     targets  A   B C </s>

NOTE: An encoder-decoder with attention copies the text through its cross-attention, so its loss soon is near zero and
it learns little of the language. A decoder with attention would do the same, and is refused.
"""

from pretune.core.config import spec
from pretune.core.types import IGNORE_INDEX
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.denoising import DenoisingCorruption
from pretune.objectives.seq2seq import choose_layout


@spec(kind="autoencoder")
class SequenceAutoencoder(Objective):
    """The text itself, generated after it was read: by a recurrent model from its state (Dai and Le)."""

    shapes = ("encoder-decoder", "decoder")
    needs_recurrence = True

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> DenoisingCorruption:
        return DenoisingCorruption((), IGNORE_INDEX, choose_layout(vocabulary, shape, self.name, prefix=False))
