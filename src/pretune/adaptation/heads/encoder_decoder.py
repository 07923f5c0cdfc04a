"""The text on both sides of an encoder-decoder, for heads that read the decoder's states (Lewis et al., 2020)."""

from dataclasses import replace

import numpy as np

from pretune.core.errors import UsageError
from pretune.data.sequences import Sequences
from pretune.models.spec import Model


def build_encoder_decoder_inputs(sequences: Sequences, spec: Model) -> Sequences:
    """The encoder reads the sequences; the decoder reads them one place later, behind its start token.

    So the decoder's state at a place is that of the token which the encoder has there, and the last state is that of
    the whole text. Where a model is one-sided the sequences are returned as they are.

    >>> from pretune.models.catalog import resolve
    >>> one = Sequences(tokens=np.array([0, 7, 8, 2]), offsets=np.array([0, 4]))
    >>> build_encoder_decoder_inputs(one, resolve("bart-base")).tokens.tolist()
    [2, 0, 7, 8]
    """
    if not spec.is_encoder_decoder:
        return sequences
    start = spec.special.start
    if start is None:
        start = next(iter(spec.special.eos), spec.special.bos)
    if start is None:
        raise UsageError("the decoder has no start token; set special.start, special.eos or special.bos of the model")
    shifted = np.roll(sequences.tokens, 1)
    shifted[sequences.offsets[:-1][sequences.lengths > 0]] = start
    return replace(sequences, tokens=shifted, source=Sequences(tokens=sequences.tokens, offsets=sequences.offsets))
