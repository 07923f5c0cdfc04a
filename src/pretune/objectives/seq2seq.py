"""Layouts of a source and a target for encoder-decoders and for decoders.

An encoder reads the source, its decoder the target shifted by one; a decoder alone reads both as one sequence, with a
loss on the target only. If the template ends in a special token, source and target both end in it:

    source a <X> d </s>, target <X> b c <Y> </s>

    EncoderDecoderLayout    source   a <X> d </s>
                            tokens   <pad> <X>  b   c  <Y>
                            targets  <X>    b   c  <Y> </s>
    DecoderLayout           tokens   a <X> d </s> <X>  b   c  <Y> </s>
                            targets  -  -  -  <X>  b   c  <Y> </s> -
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Bools, Ints, Sequences, compute_offsets, spread
from pretune.objectives.base import ModelShape, Vocabulary


class NoiseSpans(NamedTuple):
    """Spans of the ordinary tokens of all sequences; positions count ordinary tokens only."""

    start: Ints  # [J]
    length: Ints  # [J]
    counts: Ints  # [S] number of spans of each sequence


@dataclass(frozen=True, slots=True)
class EncoderDecoderLayout:
    """Layout for an encoder-decoder: the decoder reads `start_token` and the target shifted by one."""

    start_token: int

    def lengths(self, source: Ints, target: Ints) -> tuple[Ints, Ints | None]:
        """Return the lengths of encoder and decoder; the decoder reads at least the start token."""
        return source, np.maximum(target, 1)

    def combine(self, source: Sequences, labels: Sequences) -> Sequences:
        """Return the decoder's sequences with their source; an empty target has the start token and no label."""
        if (labels.lengths == 0).any():
            labels = _fill_empty(labels)
        tokens = np.empty_like(labels.tokens)
        tokens[1:] = labels.tokens[:-1]
        tokens[labels.offsets[:-1]] = self.start_token
        return replace(labels, tokens=tokens, targets=labels.tokens, source=source)

    def targets(self, tokens: int, bound: int) -> int:
        """Return the target slots: every position has one."""
        return tokens


@dataclass(frozen=True, slots=True)
class DecoderLayout:
    """Layout for a decoder: source, then target; with `prefix` bidirectional attention over the source."""

    prefix: bool

    def lengths(self, source: Ints, target: Ints) -> tuple[Ints, Ints | None]:
        """Return the total length; there is no source side."""
        return source + target, None

    def combine(self, source: Sequences, labels: Sequences) -> Sequences:
        """Concatenate source and target; each target token is the label of the position before it."""
        sizes = source.lengths + labels.lengths
        offsets = compute_offsets(sizes)
        tokens, targets = (np.full(int(offsets[-1]), IGNORE_INDEX) for _ in range(2))
        place = spread(offsets[:-1] + source.lengths, labels.lengths)
        tokens[spread(offsets[:-1], source.lengths)] = source.tokens
        tokens[place] = labels.tokens
        # The first token of a sequence has no position before it.
        has_context = place != np.repeat(offsets[:-1], labels.lengths)
        targets[place[has_context] - 1] = labels.tokens[has_context]
        prefix = source.lengths if self.prefix else None
        return replace(labels, tokens=tokens, offsets=offsets, targets=targets, prefix=prefix)

    def targets(self, tokens: int, bound: int) -> int:
        """Return the target slots: the bound, at most all tokens."""
        return min(tokens, bound)


def choose_layout(
    vocabulary: Vocabulary, shape: ModelShape, name: str, *, prefix: bool
) -> EncoderDecoderLayout | DecoderLayout:
    """Return the layout of source and target for a shape of model."""
    return EncoderDecoderLayout(vocabulary.require_start(name)) if shape == "encoder-decoder" else DecoderLayout(prefix)


def split_source(sequences: Sequences, in_source: Bools, lengths: Ints) -> Sequences:
    """Return the tokens of a mask as a source of these lengths."""
    segments = None if sequences.segments is None else sequences.segments[in_source]
    return Sequences(tokens=sequences.tokens[in_source], offsets=compute_offsets(lengths), segments=segments)


def make_labels(sequences: Sequences, tokens: Ints, lengths: Ints) -> Sequences:
    """Return tokens as the labels of sequences, with these lengths."""
    return Sequences(tokens=tokens, offsets=compute_offsets(lengths), **get_sample_info(sequences))


def get_sample_info(sequences: Sequences) -> Mapping[str, Any]:
    """Return the fields of sequences that do not depend on their tokens."""
    return {name: getattr(sequences, name) for name in ("samples", "epochs", "sources", "labels")}


def ends_in_special(sequences: Sequences) -> Bools:
    """Return a mask [S] of the sequences that end in a special token; their targets end in it too."""
    if sequences.special is None or not len(sequences.tokens):
        return np.zeros(len(sequences), dtype=np.bool_)
    return sequences.special[np.maximum(sequences.offsets[1:] - 1, 0)] & (sequences.lengths > 0)


def ensure_mask_token(vocabulary: Vocabulary) -> Vocabulary:
    """Return the vocabulary with a mask token: the first sentinel if it has none."""
    if vocabulary.find("mask") is not None or not vocabulary.sentinels:
        return vocabulary
    return replace(vocabulary, roles=(*vocabulary.roles, ("mask", vocabulary.sentinels[0])))


def _fill_empty(labels: Sequences) -> Sequences:
    """Give empty sequences one ignored label."""
    sizes = np.maximum(labels.lengths, 1)
    offsets = compute_offsets(sizes)
    tokens = np.full(int(offsets[-1]), IGNORE_INDEX)
    tokens[spread(offsets[:-1], labels.lengths)] = labels.tokens
    return replace(labels, tokens=tokens, offsets=offsets)
