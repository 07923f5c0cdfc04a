"""An input and a target, as a model reads them: on two sides, or one after the other.

An encoder-decoder reads the input, and the target behind its first token; a decoder reads both as one sequence, and
only the target counts. Where the frame ends in a special token, both end in it, so it also stands between the two:

    input a <X> d </s>, target <X> b c <Y> </s>

    TwoSides    source   a <X> d </s>
                tokens   <pad> <X>  b   c  <Y>
                targets  <X>    b   c  <Y> </s>
    OneSide     tokens   a <X> d </s> <X>  b   c  <Y> </s>
                targets  -  -  -  <X>  b   c  <Y> </s> -
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.ragged import Bools, Ints, compute_offsets, spread
from pretune.data.sequences import Sequences
from pretune.objectives.base import ModelShape, Vocabulary


class NoiseSpans(NamedTuple):
    """Stretches of the ordinary tokens of sequences, by their places among those, all of them end to end."""

    start: Ints  # [J]
    length: Ints  # [J]
    counts: Ints  # [S] spans of each sequence


@dataclass(frozen=True, slots=True)
class EncoderDecoderLayout:
    """The encoder reads the input, the decoder the target behind the token `start_token`."""

    start_token: int

    def lengths(self, source: Ints, target: Ints) -> tuple[Ints, Ints | None]:
        """Of both sides, given bounds of input and target; a decoder reads at least its first token."""
        return source, np.maximum(target, 1)

    def combine(self, source: Sequences, labels: Sequences) -> Sequences:
        """The decoder's side. Where there is nothing to say, it reads its first token and is not asked."""
        if (labels.lengths == 0).any():
            labels = _fill_empty(labels)
        tokens = np.empty_like(labels.tokens)
        tokens[1:] = labels.tokens[:-1]
        tokens[labels.offsets[:-1]] = self.start_token
        return replace(labels, tokens=tokens, targets=labels.tokens, source=source)

    def targets(self, tokens: int, expected: int) -> int:
        """Every position has one."""
        return tokens


@dataclass(frozen=True, slots=True)
class DecoderLayout:
    """A decoder reads the input, then the target; with `prefix` the input may see itself in both directions."""

    prefix: bool

    def lengths(self, source: Ints, target: Ints) -> tuple[Ints, Ints | None]:
        """Of both together."""
        return source + target, None

    def combine(self, source: Sequences, labels: Sequences) -> Sequences:
        """Both in one; each token of the target is predicted where the one before it is read."""
        sizes = source.lengths + labels.lengths
        offsets = compute_offsets(sizes)
        tokens, targets = (np.full(int(offsets[-1]), IGNORE_INDEX) for _ in range(2))
        place = spread(offsets[:-1] + source.lengths, labels.lengths)
        tokens[spread(offsets[:-1], source.lengths)] = source.tokens
        tokens[place] = labels.tokens
        asked = place != np.repeat(offsets[:-1], labels.lengths)  # nothing is read before the first of all
        targets[place[asked] - 1] = labels.tokens[asked]
        return replace(
            labels, tokens=tokens, offsets=offsets, targets=targets, prefix=source.lengths if self.prefix else None
        )

    def targets(self, tokens: int, expected: int) -> int:
        """As many as are expected, or all."""
        return min(tokens, expected)


def choose_layout(
    vocabulary: Vocabulary, shape: ModelShape, name: str, *, prefix: bool
) -> EncoderDecoderLayout | DecoderLayout:
    """How a model of a shape reads an input and a target."""
    return EncoderDecoderLayout(vocabulary.require_start(name)) if shape == "encoder-decoder" else DecoderLayout(prefix)


def get_sample_info(sequences: Sequences) -> Mapping[str, Any]:
    """What stays known of sequences whose tokens change."""
    return {name: getattr(sequences, name) for name in ("samples", "epochs", "sources", "labels")}


def ends_in_special(sequences: Sequences) -> Bools:
    """[S] whether each ends in a special token: the one that its target ends in, too."""
    if sequences.special is None or not len(sequences.tokens):
        return np.zeros(len(sequences), dtype=np.bool_)
    return sequences.special[np.maximum(sequences.offsets[1:] - 1, 0)] & (sequences.lengths > 0)


def ensure_mask_token(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary with a mask: where it has sentinels instead, the first of them."""
    if vocabulary.find("mask") is not None or not vocabulary.sentinels:
        return vocabulary
    return replace(vocabulary, roles=(*vocabulary.roles, ("mask", vocabulary.sentinels[0])))


def check_rate(rate: float, name: str) -> None:
    """Refuse a share that means nothing."""
    if not 0 < rate < 1:
        raise UsageError(f"{name} must lie between 0 and 1, found {rate}")


def _fill_empty(labels: Sequences) -> Sequences:
    """Labels of which none are empty: one that asks for nothing where there were none."""
    sizes = np.maximum(labels.lengths, 1)
    offsets = compute_offsets(sizes)
    tokens = np.full(int(offsets[-1]), IGNORE_INDEX)
    tokens[spread(offsets[:-1], labels.lengths)] = labels.tokens
    return replace(labels, tokens=tokens, offsets=offsets)
