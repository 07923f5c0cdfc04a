"""Streams of batches: plan, read, corrupt, lay out. The batch of a step is a function of (seed, step).

    samples = Sentences(limit=128).open(Shards.open("data/books", "train"), template)
    stream = BatchStream(samples, BatchShape(rows=512, length=128), seed=0, corruption=corruption)
    stream[1000]                                     # the batch of step 1000, independent of earlier calls
    stream.batch(1000, part=3, parts=8)              # the rows of rank 3 of 8

    counter = TokenCounter(stream)
    counter.count_tokens(1000)                                 # tokens of the first thousand batches
    find_steps([counter], lambda steps: [steps], 10_000_000)   # batches that hold ten million tokens

Tokens are counted from packing plans alone, none is read. They are those that a model reads, as a training run counts
them: special tokens and sentinels included, on both sides of an encoder-decoder, without filler.

A stream has no end: one epoch follows another. A pickled stream is small; the receiving process maps the shards again.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pretune.core.errors import DataError, UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import lay_out
from pretune.data.packing import MAX_LENGTH_PAIRS
from pretune.data.plan import WINDOW_SIZE, BatchShape, PackingPlan, build_plan
from pretune.data.samples import Samples
from pretune.data.sampling import Counters, EpochOrder, Mixing, SampleLengths, SourceMixture
from pretune.data.sequences import Bools, Ints, Sequences

_MAX_PLANS = 2  # plans in memory: the current epoch and a neighbour
_MIN_SEQUENCES = 4  # lower bound for the maximum number of sequences per row
_MIN_OBSERVED_ROWS = 64  # rows needed to estimate the number of targets per row
_TINY_SHARE = 0.005  # share of tokens in very short sequences, ignored by the estimate of sequences per row


class Corruption:
    """Base class: corruption of sequences by an objective, before layout.

    By default lengths stay, every token may be a target, and every epoch draws anew. A corruption that overrides
    `predict_lengths` predicts tighter lengths from sides, special tokens and its own random draws; one whose lengths
    are only bounds overrides `count_tokens`. The random draws depend on the counters alone, so the plan and `corrupt`
    compute the same draws.
    """

    __slots__ = ()

    @property
    def copies(self) -> int | None:
        """Number of epochs after which the corruptions repeat (static masking); None if they never do."""
        return None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        """Return upper bounds of the source and target lengths of sequences of n tokens; target: None with one side."""
        return n, None

    @property
    def has_random_lengths(self) -> bool:
        """True if the lengths of a sample vary between epochs."""
        return False

    @property
    def predicts_lengths(self) -> bool:
        """True if `predict_lengths` is tighter than `lengths`."""
        return type(self).predict_lengths is not Corruption.predict_lengths

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        """Return (source, target) lengths for the counters that `corrupt` will get; upper bounds if `rng` is None."""
        return self.lengths(lengths.lengths)

    @property
    def has_random_counts(self) -> bool:
        """True if the number of tokens of a corrupted sample varies between epochs."""
        return self.has_random_lengths

    def count_tokens(self, lengths: SampleLengths, rng: Counters) -> Ints:
        """Return the tokens of each corrupted sequence, source and target, for the counters that `corrupt` gets."""
        source, target = self.predict_lengths(lengths, rng)
        return source if target is None else source + target

    @property
    def lookahead(self) -> int:
        """Tokens after a window of a contiguous stream that its targets need."""
        return 0

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        """Return the corrupted sequences, one for each and in the same order; `sequences` may be empty."""
        raise NotImplementedError

    def targets(self, tokens: int, sequences: int) -> int:
        """Return the target slots for a batch with this number of sequences, and of tokens on the predicted side.

        An upper bound of the number of targets. If that number is random, about one batch in 10^9 exceeds the bound.
        """
        return tokens


class BatchStream:
    """Endless sequence of batches of one shape from one kind of samples, with random access by step.

    If the shape does not fix the number of sequences per row, the stream computes it from the lengths, so that shapes
    are the same in all epochs. With `fixed_slots` the number of target slots is also fixed, by the bound of the
    corruption. `languages` [G, 2] are the languages of the two sides of each source, for a model that embeds them: they
    are the segments of the tokens. With a `cache` directory the first process that needs a plan computes it for all.
    Raises `DataError` if there are no samples.
    """

    def __init__(
        self,
        samples: Samples,
        shape: BatchShape,
        *,
        seed: int,
        corruption: Corruption | None = None,
        mixing: Mixing | None = None,
        words: bool = False,
        sentences: bool = False,
        window: int = WINDOW_SIZE,
        cache: Path | None = None,
        fixed_slots: bool = False,
        languages: Ints | None = None,
    ) -> None:
        self.fixed_slots, self.languages = fixed_slots, languages
        self.samples, self.seed, self.corruption, self.mixing = samples, seed, corruption, mixing
        self._base_shape, self._words, self._sentences = shape, words, sentences
        self._window, self._cache = window, cache
        self._starts = [0]  # first step of each planned epoch and of the next
        self._epochs: dict[int, tuple[EpochOrder, PackingPlan]] = {}
        if not len(samples):
            raise DataError(f"{samples.shards.directory}: split '{samples.shards.split}' has no tokens; add text")

    def __getstate__(self) -> dict[str, object]:
        """Leave out the plans and the cached properties, which the receiving process computes again."""
        return {name: value for name, value in vars(self).items() if name not in vars(BatchStream)} | {"_epochs": {}}

    def __getitem__(self, step: int) -> Batch:
        return self.batch(step)

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """Return the batch of a step, or part `part` of `parts` equal parts of its rows (a rank, a micro-batch)."""
        sequences, row = self.read_sequences(step, part=part, parts=parts)
        shape = self.compute_part_shape(parts)
        if self._base_shape.slots is None and shape.slots is not None and sequences.targets is not None:
            # NOTE: about one batch in 10^9 exceeds a random bound; its shape then differs and is compiled again.
            target_count = int((sequences.targets != IGNORE_INDEX).sum())
            while shape.slots < shape.length and shape.rows * shape.slots < target_count:
                shape = replace(shape, slots=min(2 * shape.slots + 1, shape.length))
        return lay_out(sequences, row, shape)

    def compute_part_shape(self, parts: int = 1) -> BatchShape:
        """Return the shape of a batch, or of one of `parts` equal parts of it, with target slots if `fixed_slots`."""
        shape = self.shape.divide(parts)
        if not self.fixed_slots or self.corruption is None or shape.slots is not None:
            return shape
        if self._has_random_lengths and shape.source is None:
            return replace(shape, slots=self._estimate_slots(shape.rows))
        sequences, rows = self._epoch_size
        sequence_count = -(-sequences * shape.rows // rows)  # mean number of sequences per part
        return replace(
            shape, slots=-(-self.corruption.targets(shape.rows * shape.length, sequence_count) // shape.rows)
        )

    @cached_property
    def _epoch_size(self) -> tuple[int, int]:
        """Number of sequences and of rows of an epoch."""
        return len(self.plan(0).order), len(self.plan(0).starts) - 1

    def _estimate_slots(self, rows: int) -> int:
        """Return the target slots per row of a batch of `rows` rows, for a corruption with random lengths.

        The estimate is six standard deviations above the mean of the observed rows; with too few observed rows it is
        the row length.
        """
        counts, room = self._observed_targets, self.shape.length
        if len(counts) < _MIN_OBSERVED_ROWS:
            return room
        return min(room, int(np.ceil(counts.mean() + 6 * counts.std() / np.sqrt(rows))) + 1)

    @cached_property
    def _observed_targets(self) -> Ints:
        """Number of targets of each row in the first batches."""
        counts: list[Ints] = []
        for step in self.get_steps(0)[: -(-4 * _MIN_OBSERVED_ROWS // self.shape.rows)]:
            sequences, row = self.read_sequences(step)
            assert sequences.targets is not None
            counts.append(np.bincount(np.repeat(row, sequences.lengths)[sequences.targets != IGNORE_INDEX]))
        return np.concatenate(counts)

    def read_sequences(self, step: int, *, part: int = 0, parts: int = 1) -> tuple[Sequences, Ints]:
        """Return the corrupted sequences of a batch, or of a part of it, and the row of each."""
        epoch, index = self.locate_step(step)
        draws, plan = self.get_epoch(epoch)
        samples, row = plan.get_batch(index, part, parts)
        cut = self.samples.cut(draws.take(samples), words=self._words, sentences=self._sentences)
        if self.corruption is not None:
            cut = self.corruption.corrupt(cut, Counters.from_sequences(self.seed, cut, copies=self.corruption.copies))
        return cut if self.languages is None else _set_languages(cut, self.languages), row

    def iter_batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Yield the batches from step `start` up to `stop` (exclusive), without end if `stop` is None."""
        for step in itertools.count(start) if stop is None else range(start, stop):
            yield self[step]

    def locate_step(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step and the index of the step in that epoch.

        If epochs differ in their number of batches, all earlier epochs are planned once; a pickled stream keeps their
        counts. Raises `UsageError` if the step is negative.
        """
        if step < 0:
            raise UsageError(f"step must be >= 0, got {step}")
        if self.batches_per_epoch is not None:
            return divmod(step, self.batches_per_epoch)
        while step >= self._starts[-1]:
            self.get_steps(len(self._starts) - 1)
        epoch = bisect.bisect_right(self._starts, step) - 1
        return epoch, step - self._starts[epoch]

    def get_steps(self, epoch: int) -> range:
        """Return the range of steps of an epoch."""
        if self.batches_per_epoch is not None:
            return range(epoch * self.batches_per_epoch, (epoch + 1) * self.batches_per_epoch)
        while len(self._starts) <= epoch + 1:
            self._starts.append(self._starts[-1] + self.plan(len(self._starts) - 1).batch_count)
        return range(*self._starts[epoch : epoch + 2])

    @property
    def _has_random_lengths(self) -> bool:
        return self.corruption is not None and self.corruption.has_random_lengths

    @property
    def packing_method(self) -> str | None:
        """Name of the packing method; None for the first method. NOTE: part of run fingerprints, must not change."""
        predicts_lengths = self.corruption is not None and self.corruption.predicts_lengths
        has_new_method = self._base_shape.source is not None or predicts_lengths
        return "2: both sides at once, by the lengths that are drawn" if has_new_method else None

    def plan(self, epoch: int) -> PackingPlan:
        """Return the packing plan of an epoch."""
        return self.get_epoch(epoch)[1]

    @cached_property
    def batches_per_epoch(self) -> int | None:
        """Number of batches per epoch; None if it may vary. With one window and fixed lengths it is constant.

        Not with both sides of more distinct lengths than are packed together: each epoch divides them in its order.
        """
        if self.mixing is not None or len(self.samples) > self._window or self._has_random_lengths:
            return None
        if self._base_shape.source is not None:
            first, second = compute_row_lengths(self.samples, self.corruption)
            if second is not None and len({*zip(first.tolist(), second.tolist(), strict=True)}) > MAX_LENGTH_PAIRS:
                return None
        return self.plan(0).batch_count

    @cached_property
    def mixture(self) -> SourceMixture:
        """Mixture of the sources in an epoch; `count_epochs(n)` counts the passes over each source after n rounds."""
        names = self.samples.shards.index.sources
        return SourceMixture.from_samples(self.mixing, self.samples.sources, self.samples.lengths(), names)

    @cached_property
    def shape(self) -> BatchShape:
        """Shape of every batch, with the maximum number of sequences per row."""
        if self._base_shape.sequences is not None:
            return self._base_shape
        # Random lengths are estimated from the draws of the first epoch.
        draws = self._draw_epoch(0) if self._has_random_lengths else None
        rates = self.mixture.compute_rates() if draws is None else np.ones(len(draws))
        lengths, source = compute_row_lengths(self.samples, self.corruption, draws)
        max_sequences = _estimate_max_sequences(lengths, self._base_shape.length, rates)
        if source is not None and self._base_shape.source is not None:
            max_sequences = min(max_sequences, _estimate_max_sequences(source, self._base_shape.source, rates))
        return replace(self._base_shape, sequences=max_sequences)

    def get_epoch(self, epoch: int) -> tuple[EpochOrder, PackingPlan]:
        """Return draws and plan of an epoch; at most `_MAX_PLANS` epochs stay in memory."""
        if epoch not in self._epochs:
            while len(self._epochs) >= _MAX_PLANS:
                del self._epochs[next(iter(self._epochs))]
            draws = self._draw_epoch(epoch)
            lengths, source = compute_row_lengths(self.samples, self.corruption, draws)
            keys = {"seed": self.seed, "epoch": epoch, "window": self._window}
            plan = build_plan(lengths, self.shape, source=source, cache=self._cache, **keys)
            self._epochs[epoch] = (draws, plan)
        return self._epochs[epoch]

    def count_tokens(self, draws: EpochOrder) -> Ints:
        """Return the tokens of the sequence of each draw, after corruption."""
        lengths = self.samples.measure_lengths(draws)
        if self.corruption is None:
            return lengths.lengths
        return self.corruption.count_tokens(
            lengths, Counters.from_sequences(draws.seed, draws, copies=self.corruption.copies)
        )

    def _draw_epoch(self, epoch: int) -> EpochOrder:
        """Return the draws of an epoch, with partners."""
        return self.samples.assign_partners(self.mixture.draw_order(self.seed, epoch))


def _set_languages(sequences: Sequences, languages: Ints) -> Sequences:
    """Return the sequences with the language of every token as its segment; `languages` [G, 2] are those of sources."""
    assert sequences.sources is not None
    owner = sequences.find_owners()
    is_second: Bools = np.zeros(len(owner), dtype=bool)
    if sequences.sides is not None:
        begin = sequences.sides[owner]
        is_second = (begin > 0) & (np.arange(len(owner)) - sequences.offsets[owner] >= begin)
    return replace(sequences, segments=languages[sequences.sources[owner], is_second.astype(np.int64)])


def compute_row_lengths(
    samples: Samples, corruption: Corruption | None, draws: EpochOrder | None = None
) -> tuple[Ints, Ints | None]:
    """Return the room that each draw (or sample) needs in a row: (decoder side, encoder side or None)."""
    if corruption is None:
        return samples.lengths(draws), None
    rng = None if draws is None else Counters.from_sequences(draws.seed, draws, copies=corruption.copies)
    source, target = corruption.predict_lengths(samples.measure_lengths(draws), rng)
    return (source, None) if target is None else (target, source)


def _estimate_max_sequences(lengths: Ints, room: int, rates: np.ndarray[Any, np.dtype[np.float64]]) -> int:
    """Return the maximum number of sequences per row; only rows of very short sequences could hold more."""
    tokens = np.cumsum(np.bincount(lengths, weights=lengths * rates))
    short = int(np.searchsorted(tokens, _TINY_SHARE * tokens[-1], side="right"))
    return min(max(room // max(short, 1), _MIN_SEQUENCES), room)


MAX_COUNTED_EPOCHS = 10
"""Epochs that are planned to count their tokens, where epochs differ; later ones are like the mean of these."""


class TokenCounter:
    """Tokens of the batches of a stream.

    Counts are exact: for any number of epochs if all have the same batches and tokens, else for the first `max_epochs`.
    """

    def __init__(self, stream: BatchStream, max_epochs: int = MAX_COUNTED_EPOCHS) -> None:
        self.stream, self.max_epochs = stream, max_epochs
        self._offsets: dict[int, Ints] = {}

    @property
    def capacity(self) -> int:
        """Room for tokens in a batch."""
        shape = self.stream.shape
        return shape.rows * (shape.length + (shape.source or 0))

    def count_tokens(self, steps: int) -> int:
        """Return the number of tokens in the batches of the first `steps` steps."""
        if steps < 1:
            return 0
        if self._tokens_per_epoch is not None:
            epoch, index = self.stream.locate_step(steps - 1)
            return epoch * self._tokens_per_epoch + int(self._count_batches(epoch)[index + 1])
        tokens = first_step = 0
        for epoch in range(self.max_epochs):
            offsets = self._count_batches(epoch)
            if steps - first_step < len(offsets):
                return tokens + int(offsets[steps - first_step])
            tokens, first_step = tokens + int(offsets[-1]), first_step + len(offsets) - 1
        return tokens + (steps - first_step) * tokens // first_step

    @cached_property
    def _tokens_per_epoch(self) -> int | None:
        """Number of tokens of every epoch; None if epochs may differ in their batches or tokens."""
        corruption = self.stream.corruption
        if self.stream.batches_per_epoch is None or (corruption is not None and corruption.has_random_counts):
            return None
        return int(self._count_batches(0)[-1])

    def _count_batches(self, epoch: int) -> Ints:
        """Return the tokens of an epoch before each batch, and of all batches: [batches + 1]."""
        if epoch not in self._offsets:
            draws, plan = self.stream.get_epoch(epoch)
            self._offsets[epoch] = plan.accumulate(self.stream.count_tokens(draws))
        return self._offsets[epoch]


def count_run_tokens(counters: Sequence[TokenCounter], phase_steps: Sequence[int]) -> int:
    """Return the tokens of a run whose phases have these numbers of steps."""
    return sum(counter.count_tokens(steps) for counter, steps in zip(counters, phase_steps, strict=True))


def find_steps(counters: Sequence[TokenCounter], divide: Callable[[int], Sequence[int]], tokens: int) -> int:
    """Return the smallest number of steps whose batches hold at least `tokens` tokens.

    `divide` returns the steps of each phase of a run; every further step must be one more of some phase.
    """
    steps, capacity = 0, max(counter.capacity for counter in counters)
    while (missing := tokens - count_run_tokens(counters, divide(steps))) > 0:
        steps += -(-missing // capacity)  # at least this many more, as no batch holds more
    return steps
