"""Span corruption: replace spans by sentinels and generate the spans.

Paper: Raffel et al. (2020, sections 3.1.4 and 3.3.4), the objective of T5. Input: documents or blocks. As in the
released code, the number of corrupted tokens and of spans follows from the length (`round(rate * n)`, and that divided
by `mean`, rounded); the lengths of the spans, and of the text between them, are uniform over all positive integers with
their sum; a sequence begins with text and ends with a span. Siblings: `denoising` generates the whole text; `prefix`
the end.

    text     Thank you for inviting me to your party last week . </s>
    source   Thank you <X> me to your party <Y> week . </s>
    target   <X> for inviting <Y> last <Z> </s>

Sentinels are used in vocabulary order; the released code, unlike the paper, has no closing one. A sequence that needs
more sentinels than there are gets fewer, longer spans. A special token inside a span (between the documents of a block)
stays in the source, after the sentinel.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from pretune.core.config import Ge, Gt, Lt, NonNegative, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import Counters, SampleLengths
from pretune.data.sequences import Ints, Sequences, compute_offsets, compute_starts, spread
from pretune.data.stream import Corruption
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.segment_sampling import Bits, exclusive_cumsum, find_ordinary_tokens, sample_k
from pretune.objectives.seq2seq import (
    DecoderLayout,
    EncoderDecoderLayout,
    NoiseSpans,
    choose_layout,
    ends_in_special,
    make_labels,
    split_source,
)


@spec
class SpanCorruption(Objective):
    """Spans replaced by sentinels, predicted one after another (T5)."""

    rate: Annotated[float, Gt(0), Lt(1)] = 0.15
    mean: Annotated[float, Ge(1)] = 3.0  # mean span length in tokens
    closing: bool = True  # a closing sentinel at the end of the target
    prefix: bool = False  # a decoder has bidirectional attention over the input
    specials: NonNegative[int] | None = None  # at most, per sequence, for tighter packing; None: any number

    shapes = ("encoder-decoder", "decoder")
    difficulty_settings = ("rate", "mean")

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "SentinelCorruption":
        if len(vocabulary.sentinels) < 1 + self.closing:
            raise UsageError(
                f"span_corruption needs at least {1 + self.closing} sentinels, this tokenizer has "
                f"{len(vocabulary.sentinels)}; train one with --style sentinels"
            )
        sentinels = np.asarray(vocabulary.sentinels, dtype=np.int64)
        return SentinelCorruption(self, sentinels, choose_layout(vocabulary, shape, self.name, prefix=self.prefix))


@dataclass(frozen=True, slots=True, eq=False)
class SentinelCorruption(Corruption):
    """Spans replaced by sentinels in the source; sentinels and spans as target."""

    objective: SpanCorruption
    sentinels: Ints
    layout: EncoderDecoderLayout | DecoderLayout

    def count_noise(self, ordinary: Ints) -> tuple[Ints, Ints]:
        """Return the numbers of corrupted tokens and spans for these numbers of ordinary tokens; 0 of a single one."""
        noise = np.clip(np.rint(self.objective.rate * ordinary).astype(np.int64), 1, np.maximum(ordinary - 1, 0))
        max_spans = np.minimum(np.minimum(noise, ordinary - noise), len(self.sentinels) - self.objective.closing)
        return noise, np.clip(np.rint(noise / self.objective.mean).astype(np.int64), np.minimum(noise, 1), max_spans)

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        noise, spans = self.count_noise(n)
        fewer_tokens, fewer_spans = self.count_noise(np.maximum(n - 1, 0))
        # All tokens ordinary, or the last one special.
        target = np.maximum(noise + spans, fewer_tokens + fewer_spans + 1) + self.objective.closing
        if isinstance(self.layout, DecoderLayout):
            return self.layout.lengths(n + 2 * spans + self.objective.closing + 1, np.zeros_like(n))
        if self.objective.specials is None:
            return self.layout.lengths(n, target)
        options = [self.count_noise(np.maximum(n - i, 0)) for i in range(self.objective.specials + 1)]
        source = np.max([n - hidden + span_count for hidden, span_count in options], axis=0)
        return self.layout.lengths(source, target)

    has_random_lengths = has_random_counts = False

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        """Return bounds from the number of ordinary tokens; only a closing special token is uncertain."""
        n = lengths.lengths
        noise, spans = self.count_noise(n - lengths.special_counts)
        target = noise + spans + self.objective.closing + (lengths.special_counts > 0)
        return self.layout.lengths(n - noise + spans, target)

    def count_tokens(self, lengths: SampleLengths, rng: Counters) -> Ints:
        """Return the tokens of source and target, from the numbers of tokens and of spans."""
        noise, spans = self.count_noise(lengths.lengths - lengths.special_counts)
        target = noise + spans + self.objective.closing + lengths.ends_in_special
        source_length, target_length = self.layout.lengths(lengths.lengths - noise + spans, target)
        return source_length if target_length is None else source_length + target_length

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        index, sizes = find_ordinary_tokens(sequences)
        self._check_specials(sequences.lengths - sizes)
        noise, counts = self.count_noise(sizes)
        hidden = split_randomly(rng.bits(0, count_gaps(noise)), noise, counts)
        visible = split_randomly(rng.bits(1, count_gaps(sizes - noise)), np.where(counts > 0, sizes - noise, 0), counts)
        earlier = exclusive_cumsum(hidden, counts) + exclusive_cumsum(visible, counts)
        start = np.repeat(compute_starts(sizes), counts) + earlier + visible
        return self.layout.combine(*self.replace_spans(sequences, index, NoiseSpans(start, hidden, counts)))

    def replace_spans(self, sequences: Sequences, index: Ints, spans: NoiseSpans) -> tuple[Sequences, Sequences]:
        """Return source and labels for spans of the ordinary tokens, whose positions are `index`."""
        start, length, counts = spans
        noise = np.diff(compute_offsets(length)[compute_offsets(counts)])
        numbers = spread(np.zeros_like(counts), counts)  # of each span in its sequence
        sentinels = self.sentinels[numbers]
        places = index[spread(start, length)]
        keep = np.ones(len(sequences.tokens), dtype=np.bool_)
        keep[places] = False
        keep[index[start]] = True
        tokens = sequences.tokens.copy()
        tokens[index[start]] = sentinels
        source = split_source(replace(sequences, tokens=tokens), keep, sequences.lengths - noise + counts)
        closing, ends = self.objective.closing, ends_in_special(sequences)
        lengths = noise + counts + closing + ends
        offsets = compute_offsets(lengths)
        labels = np.full(int(offsets[-1]), IGNORE_INDEX)
        first = np.repeat(offsets[:-1], counts) + exclusive_cumsum(length, counts) + numbers
        labels[first] = sentinels
        labels[spread(first + 1, length)] = sequences.tokens[places]
        if closing:
            labels[offsets[:-1] + noise + counts] = self.sentinels[counts]
        labels[offsets[1:][ends] - 1] = sequences.tokens[sequences.offsets[1:][ends] - 1]
        return source, make_labels(sequences, labels, lengths)

    def targets(self, tokens: int, sequences: int) -> int:
        # A decoder reads n tokens and two sentinels per span; targets are the corrupted tokens and a sentinel per span.
        # Rounding up adds less than 1 to each count, and so do a single corrupted token, the closing and the end.
        rate, sentinel_share = self.objective.rate, 1 / self.objective.mean
        share = max(rate, rate * (1 + sentinel_share) / (1 + 2 * rate * sentinel_share))
        return self.layout.targets(tokens, int(share * tokens + (4 + sentinel_share) * sequences) + 1)

    def _check_specials(self, specials: Ints) -> None:
        limit = self.objective.specials
        if limit is not None and len(specials) and int(specials.max()) > limit:
            raise UsageError(
                f"a sequence has {int(specials.max())} special tokens, but specials of span_corruption is {limit}; "
                "increase it, or set it to null"
            )


def count_gaps(totals: Ints) -> Ints:
    """Return the number of gaps between this many items."""
    return np.maximum(totals - 1, 0)


def split_randomly(bits: Bits, totals: Ints, parts: Ints) -> Ints:
    """Split `totals[g]` items at random into `parts[g]` parts of at least one item; returns their lengths [J].

    All splits are equally likely. `bits` has a number per gap (`count_gaps`); a group of no parts has no items.
    """
    counts = count_gaps(parts)
    cuts = sample_k(bits, count_gaps(totals), counts)
    group = np.repeat(np.arange(len(totals)), counts)
    starts = cuts + (compute_starts(totals) - compute_starts(count_gaps(totals)))[group] + 1
    starts = np.sort(np.concatenate((compute_starts(totals)[parts > 0], starts)))
    return np.diff(np.append(starts, totals.sum()))
