"""Inputs of an encoder-decoder for heads on the decoder's states: the text on both sides (Lewis et al., 2020)."""

from dataclasses import replace

import numpy as np

from pretune.core.errors import UsageError
from pretune.data.sequences import Sequences
from pretune.models.spec import Model


def build_encoder_decoder_inputs(sequences: Sequences, spec: Model) -> Sequences:
    """Return inputs of both sides: the text for the encoder, and shifted right behind the start token for the decoder.

    The decoder's state at a position then belongs to the token that the encoder has there, and the last state to the
    whole text. For other models the sequences are returned unchanged.

    >>> from pretune.models.catalog import resolve
    >>> sequences = Sequences(tokens=np.array([0, 7, 8, 2]), offsets=np.array([0, 4]))
    >>> build_encoder_decoder_inputs(sequences, resolve("bart-base")).tokens.tolist()
    [2, 0, 7, 8]
    """
    if not spec.is_encoder_decoder:
        return sequences
    start = spec.special.start
    if start is None:
        start = next(iter(spec.special.eos), spec.special.bos)
    if start is None:
        raise UsageError("the decoder has no start token; set special.start, special.eos or special.bos of the model")
    decoder_tokens = np.roll(sequences.tokens, 1)
    decoder_tokens[sequences.offsets[:-1][sequences.lengths > 0]] = start
    return replace(
        sequences, tokens=decoder_tokens, source=Sequences(tokens=sequences.tokens, offsets=sequences.offsets)
    )
