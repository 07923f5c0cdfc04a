"""Prefix language modelling: bidirectional attention over the first part of a text, causal prediction of the rest.

Papers: Liu et al. (2018); compared with other objectives by Raffel et al. (2020, section 3.3.1). Input: documents or
blocks. The prefix has from one ordinary token to all but one, uniformly; a text of one token is all prefix. Siblings:
`causal` predicts every token; `span_corruption` replaces spans in the middle.

    decoder           tokens   Thank you  for  inviting me      prefix 2: these two attend to each other
                      targets    -   for inviting  me   -
    encoder-decoder   source   Thank you </s>
                      tokens   <pad> for inviting me
                      targets  for inviting me </s>
"""

from dataclasses import dataclass, replace

import numpy as np

from pretune.core.config import spec
from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import Counters, SampleLengths
from pretune.data.sequences import Ints, Sequences, compute_starts
from pretune.data.stream import Corruption
from pretune.objectives.base import ModelShape, Objective, Vocabulary, bound_target_slots
from pretune.objectives.causal import find_next_tokens
from pretune.objectives.segment_sampling import find_ordinary_tokens
from pretune.objectives.seq2seq import EncoderDecoderLayout, ends_in_special, make_labels, split_source

LENGTH_DISPERSION = 2.0
"""Sum of squared sequence lengths of a batch, relative to equal lengths."""


@spec(kind="prefix")
class PrefixLM(Objective):
    """The rest of a text after a prefix with bidirectional attention (prefix LM)."""

    shapes = ("encoder-decoder", "decoder")
    needs_attention = True

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "PrefixCorruption | PrefixSplitCorruption":
        if shape == "decoder":
            return PrefixCorruption()
        return PrefixSplitCorruption(EncoderDecoderLayout(vocabulary.require_start(self.name)))


@dataclass(frozen=True, slots=True)
class PrefixCorruption(Corruption):
    """Corruption for a decoder: unchanged tokens, targets after the prefix."""

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        prefix = draw_split_points(sequences, rng)
        # The last token of the prefix predicts the next.
        is_context = sequences.compute_positions() < np.repeat(prefix, sequences.lengths) - 1
        targets = np.where(is_context, IGNORE_INDEX, find_next_tokens(sequences))
        return replace(sequences, targets=targets, prefix=prefix)

    def targets(self, tokens: int, sequences: int) -> int:
        # Half of each sequence and its end; a uniform number up to n has the variance n * n / 12.
        variance = LENGTH_DISPERSION * tokens**2 / (12 * max(sequences, 1))
        return bound_target_slots((tokens + sequences) / 2, variance, tokens)


@dataclass(frozen=True, slots=True)
class PrefixSplitCorruption(Corruption):
    """Corruption for an encoder-decoder: prefix and closing token are the source, the rest is the target."""

    layout: EncoderDecoderLayout

    has_random_lengths = True
    has_random_counts = False

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self.layout.lengths(n, n - 1)

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        if rng is None:
            return self.lengths(lengths.lengths)
        n, ordinary = lengths.lengths, lengths.lengths - lengths.special_counts
        prefix_length = draw_split_index(ordinary, rng) + 1
        # All or none of the special tokens may be in the prefix.
        source, target = prefix_length + lengths.special_counts, n - prefix_length
        return self.layout.lengths(np.where(ordinary > 0, source, n), np.where(ordinary > 0, target, 0))

    def count_tokens(self, lengths: SampleLengths, rng: Counters) -> Ints:
        """Return the tokens of both sides: the text, and again its closing token, or the start of an empty target."""
        is_split = lengths.lengths - lengths.special_counts > 1
        return lengths.lengths + np.where(is_split, lengths.ends_in_special, 1)

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        prefix = draw_split_points(sequences, rng)
        first = sequences.compute_positions() < np.repeat(prefix, sequences.lengths)
        closing = ends_in_special(sequences) & (prefix < sequences.lengths)
        in_source = first.copy()
        in_source[sequences.offsets[1:][closing] - 1] = True
        source = split_source(sequences, in_source, prefix + closing)
        return self.layout.combine(source, make_labels(sequences, sequences.tokens[~first], sequences.lengths - prefix))


def draw_split_points(sequences: Sequences, rng: Counters) -> Ints:
    """Sample the prefix lengths [S]: up to a random ordinary token; the whole sequence if there is none."""
    index, sizes = find_ordinary_tokens(sequences)
    if not len(index):
        return sequences.lengths
    last = index[np.minimum(compute_starts(sizes) + draw_split_index(sizes, rng), len(index) - 1)]
    return np.where(sizes > 0, last + 1 - sequences.offsets[:-1], sequences.lengths)


def draw_split_index(sizes: Ints, rng: Counters) -> Ints:
    """Sample the last ordinary token of the prefix [S], uniform over all but the last of the text."""
    index = (rng.uniform(0) * (sizes - 1)).astype(np.int64)
    return np.clip(index, 0, np.maximum(sizes - 2, 0))
