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
from pretune.core.types import IGNORE
from pretune.data.ragged import Bools, Ints, bounds, spread
from pretune.data.sequences import Sequences
from pretune.objectives.base import ModelShape, Vocabulary


class Spans(NamedTuple):
    """Stretches of the ordinary tokens of sequences, by their places among those, all of them end to end."""

    start: Ints  # [J]
    length: Ints  # [J]
    counts: Ints  # [S] spans of each sequence


@dataclass(frozen=True, slots=True)
class TwoSides:
    """The encoder reads the input, the decoder the target behind the token `first`."""

    first: int

    def lengths(self, source: Ints, target: Ints) -> tuple[Ints, Ints | None]:
        """Of both sides, given bounds of input and target; a decoder reads at least its first token."""
        return source, np.maximum(target, 1)

    def teach(self, source: Sequences, labels: Sequences) -> Sequences:
        """The decoder's side. Where there is nothing to say, it reads its first token and is not asked."""
        if (labels.lengths == 0).any():
            labels = _said(labels)
        tokens = np.empty_like(labels.tokens)
        tokens[1:] = labels.tokens[:-1]
        tokens[labels.offsets[:-1]] = self.first
        return replace(labels, tokens=tokens, targets=labels.tokens, source=source)

    def targets(self, tokens: int, expected: int) -> int:
        """Every position has one."""
        return tokens


@dataclass(frozen=True, slots=True)
class OneSide:
    """A decoder reads the input, then the target; with `prefix` the input may see itself in both directions."""

    prefix: bool

    def lengths(self, source: Ints, target: Ints) -> tuple[Ints, Ints | None]:
        """Of both together."""
        return source + target, None

    def teach(self, source: Sequences, labels: Sequences) -> Sequences:
        """Both in one; each token of the target is predicted where the one before it is read."""
        sizes = source.lengths + labels.lengths
        offsets = bounds(sizes)
        tokens, targets = (np.full(int(offsets[-1]), IGNORE) for _ in range(2))
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


def side(vocabulary: Vocabulary, shape: ModelShape, name: str, *, prefix: bool) -> TwoSides | OneSide:
    """How a model of a shape reads an input and a target."""
    return TwoSides(vocabulary.first(name)) if shape == "encoder-decoder" else OneSide(prefix)


def known(sequences: Sequences) -> Mapping[str, Any]:
    """What stays known of sequences whose tokens change."""
    return {name: getattr(sequences, name) for name in ("samples", "epochs", "sources", "labels")}


def closed(sequences: Sequences) -> Bools:
    """[S] whether each ends in a special token: the one that its target ends in, too."""
    if sequences.special is None or not len(sequences.tokens):
        return np.zeros(len(sequences), dtype=np.bool_)
    return sequences.special[np.maximum(sequences.offsets[1:] - 1, 0)] & (sequences.lengths > 0)


def masking(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary with a mask: where it has sentinels instead, the first of them."""
    if vocabulary.find("mask") is not None or not vocabulary.sentinels:
        return vocabulary
    return replace(vocabulary, roles=(*vocabulary.roles, ("mask", vocabulary.sentinels[0])))


def check_rate(rate: float, what: str) -> None:
    """Refuse a share that means nothing."""
    if not 0 < rate < 1:
        raise UsageError(f"{what} must lie between 0 and 1, found {rate}")


def _said(labels: Sequences) -> Sequences:
    """Labels of which none are empty: one that asks for nothing where there were none."""
    sizes = np.maximum(labels.lengths, 1)
    offsets = bounds(sizes)
    tokens = np.full(int(offsets[-1]), IGNORE)
    tokens[spread(offsets[:-1], labels.lengths)] = labels.tokens
    return replace(labels, tokens=tokens, offsets=offsets)
