"""Span corruption: replace spans by sentinels, and say what each sentinel stands for.

Paper: Raffel et al. (2020, sections 3.1.4 and 3.3.4), the objective of T5. Input: documents or blocks. As in the
released code, the number of hidden tokens and of spans follows from the length (`round(rate * n)`, and `round` of that
by `mean`), the lengths of the spans and of the text between them are each one of the possible sequences of positive
numbers with their sum, all equally likely, and a sequence begins with text and ends with a span. Siblings: `denoising`
asks for the whole text again; `prefix` hides the end.

    text     Thank you for inviting me to your party last week . </s>
    source   Thank you <X> me to your party <Y> week . </s>
    target   <X> for inviting <Y> last <Z> </s>

Sentinels come in the order of the vocabulary; the released code, unlike the paper, leaves out the closing one. A
sequence that would need more than there are has fewer, longer spans. A special token inside a span (between the
documents of a block) stays in the source, behind the sentinel.
"""

from dataclasses import dataclass

import numpy as np

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.counters import Counters
from pretune.data.epoch_order import SampleLengths
from pretune.data.ragged import Ints, compute_offsets, compute_starts, spread
from pretune.data.sequences import Sequences
from pretune.objectives.base import BaseCorruption, ModelShape, Objective, Vocabulary
from pretune.objectives.segment_sampling import Bits, exclusive_cumsum, find_ordinary_tokens, sample_k
from pretune.objectives.seq2seq import (
    DecoderLayout,
    EncoderDecoderLayout,
    NoiseSpans,
    check_rate,
    choose_layout,
    ends_in_special,
    get_sample_info,
)


@spec
class SpanCorruption(Objective):
    """Spans replaced by sentinels, predicted one after another (T5)."""

    rate: float = 0.15
    mean: float = 3.0  # tokens of a span
    closing: bool = True  # whether the target ends in one more sentinel
    prefix: bool = False  # whether a decoder sees the input in both directions
    specials: int | None = None  # so many special tokens a sequence has at most: a tighter plan; None: any number

    shapes = ("encoder-decoder", "decoder")

    def __post_init__(self) -> None:
        check_rate(self.rate, "the rate of span_corruption")
        if self.mean < 1:
            raise UsageError(f"the mean span of span_corruption must be at least 1, found {self.mean}")
        if self.specials is not None and self.specials < 0:
            raise UsageError(f"specials counts special tokens, found {self.specials}; leave it empty for any number")

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "SentinelCorruption":
        if len(vocabulary.sentinels) < 1 + self.closing:
            raise UsageError(
                f"span_corruption needs {1 + self.closing} sentinels or more, and this tokenizer has "
                f"{len(vocabulary.sentinels)}; train one with --style sentinels"
            )
        sentinels = np.asarray(vocabulary.sentinels, dtype=np.int64)
        return SentinelCorruption(self, sentinels, choose_layout(vocabulary, shape, self.name, prefix=self.prefix))

    def to_evaluation(self) -> "SpanCorruption":
        """15 % in spans of 3, whatever the training."""
        return SpanCorruption(closing=self.closing, prefix=self.prefix, specials=self.specials)


@dataclass(frozen=True, slots=True, eq=False)
class SentinelCorruption(BaseCorruption):
    """Spans drawn, and both sides written."""

    objective: SpanCorruption
    sentinels: Ints
    layout: EncoderDecoderLayout | DecoderLayout

    def count_noise(self, ordinary: Ints) -> tuple[Ints, Ints]:
        """How many tokens and spans are hidden of so many ordinary tokens; of a single one, none."""
        noise = np.clip(np.rint(self.objective.rate * ordinary).astype(np.int64), 1, np.maximum(ordinary - 1, 0))
        most = np.minimum(np.minimum(noise, ordinary - noise), len(self.sentinels) - self.objective.closing)
        return noise, np.clip(np.rint(noise / self.objective.mean).astype(np.int64), np.minimum(noise, 1), most)

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        noise, spans = self.count_noise(n)
        fewer, less = self.count_noise(np.maximum(n - 1, 0))
        target = np.maximum(noise + spans, fewer + less + 1) + self.objective.closing  # all ordinary, or closed by one
        if isinstance(self.layout, DecoderLayout):
            return self.layout.lengths(n + 2 * spans + self.objective.closing + 1, np.zeros_like(n))
        if self.objective.specials is None:
            return self.layout.lengths(n, target)
        options = [self.count_noise(np.maximum(n - i, 0)) for i in range(self.objective.specials + 1)]
        source = np.max([n - hidden + marks for hidden, marks in options], axis=0)
        return self.layout.lengths(source, target)

    @property
    def has_random_lengths(self) -> bool:
        return False

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        """Amounts follow from the number of ordinary tokens; only whether there is an end to repeat is not known."""
        n = lengths.lengths
        noise, spans = self.count_noise(n - lengths.special_counts)
        target = noise + spans + self.objective.closing + (lengths.special_counts > 0)
        return self.layout.lengths(n - noise + spans, target)

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        index, sizes = find_ordinary_tokens(sequences)
        self._check_specials(sequences.lengths - sizes)
        noise, counts = self.count_noise(sizes)
        hidden = split_randomly(rng.bits(0, count_gaps(noise)), noise, counts)
        shown = split_randomly(rng.bits(1, count_gaps(sizes - noise)), np.where(counts > 0, sizes - noise, 0), counts)
        start = (
            exclusive_cumsum(hidden, counts)
            + exclusive_cumsum(shown, counts)
            + shown
            + np.repeat(compute_starts(sizes), counts)
        )
        return self.layout.combine(*self.replace_spans(sequences, index, NoiseSpans(start, hidden, counts)))

    def replace_spans(self, sequences: Sequences, index: Ints, spans: NoiseSpans) -> tuple[Sequences, Sequences]:
        """Source and labels for spans of the ordinary tokens, which are at the places `index`."""
        start, length, counts = spans
        noise = np.diff(compute_offsets(length)[compute_offsets(counts)])
        sentinels = self.sentinels[spread(np.zeros_like(counts), counts)]
        places = index[spread(start, length)]
        keep = np.ones(len(sequences.tokens), dtype=np.bool_)
        keep[places] = False
        keep[index[start]] = True
        tokens = sequences.tokens.copy()
        tokens[index[start]] = sentinels
        source = Sequences(
            tokens=tokens[keep],
            offsets=compute_offsets(sequences.lengths - noise + counts),
            segments=None if sequences.segments is None else sequences.segments[keep],
        )
        closing, ends = self.objective.closing, ends_in_special(sequences)
        offsets = compute_offsets(noise + counts + closing + ends)
        labels = np.full(int(offsets[-1]), IGNORE_INDEX)
        first = (
            np.repeat(offsets[:-1], counts) + exclusive_cumsum(length, counts) + spread(np.zeros_like(counts), counts)
        )
        labels[first] = sentinels
        labels[spread(first + 1, length)] = sequences.tokens[places]
        if closing:
            labels[offsets[:-1] + noise + counts] = self.sentinels[counts]
        labels[offsets[1:][ends] - 1] = sequences.tokens[sequences.offsets[1:][ends] - 1]
        return source, Sequences(tokens=labels, offsets=offsets, **get_sample_info(sequences))

    def targets(self, tokens: int, sequences: int) -> int:
        # On one side stand n tokens and two sentinels per span; targets are the hidden tokens and one of the sentinels.
        # Rounding up adds less than 1 to each amount, and so do a single hidden token, the closing and the end.
        rate, marks = self.objective.rate, 1 / self.objective.mean
        share = max(rate, rate * (1 + marks) / (1 + 2 * rate * marks))
        return self.layout.targets(tokens, int(share * tokens + (4 + marks) * sequences) + 1)

    def _check_specials(self, specials: Ints) -> None:
        most = self.objective.specials
        if most is not None and len(specials) and int(specials.max()) > most:
            raise UsageError(
                f"a sequence with {int(specials.max())} special tokens where span_corruption counts on {most} at most; "
                "raise specials, or leave it empty"
            )


def count_gaps(totals: Ints) -> Ints:
    """How many places there are to cut so many items in two."""
    return np.maximum(totals - 1, 0)


def split_randomly(bits: Bits, totals: Ints, parts: Ints) -> Ints:
    """[J] the lengths of `parts[g]` parts of at least one item each that `totals[g]` items are cut into at random.

    All cuts are equally likely. The bits are one for each of a group's `count_gaps`; a group of no parts has no items.
    """
    counts = count_gaps(parts)
    cuts = sample_k(bits, count_gaps(totals), counts)
    group = np.repeat(np.arange(len(totals)), counts)
    starts = cuts + (compute_starts(totals) - compute_starts(count_gaps(totals)))[group] + 1
    starts = np.sort(np.concatenate((compute_starts(totals)[parts > 0], starts)))
    return np.diff(np.append(starts, totals.sum()))
