"""The stream of batches: plan, cut, corrupt, lay out. The batch of a step is a function of (seed, step).

    samples = Sentences(limit=128).open(Shards.open("data/books", "train"), frame)
    stream = BatchStream(samples, BatchShape(rows=512, length=128), seed=0, corruption=corruption)
    stream[1000]                                     # the batch of step 1000, independent of earlier calls
    stream.batch(1000, part=3, parts=8)              # the rows that rank 3 of 8 reads of it

A stream goes on for ever, epoch after epoch. It is small to send to another process, which maps the shards for itself.
"""

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pretune.core.errors import DataError, UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.batch_shape import BatchShape
from pretune.data.counters import Counters
from pretune.data.epoch_order import EpochOrder, SampleLengths
from pretune.data.layout import lay_out
from pretune.data.length_schedule import LengthStage
from pretune.data.mixing import Mixing, SourceMixture
from pretune.data.plan import WINDOW_SIZE, PackingPlan, build_plan
from pretune.data.ragged import Ints
from pretune.data.samples import Samples
from pretune.data.sequences import Sequences

_MAX_PLANS = 2  # plans in memory: of the epoch that is read, and of the one before or after it
_MIN_SEQUENCES = 4  # a row may always hold so many
_MIN_OBSERVED_ROWS = 64  # rows from which it can be told how many targets rows have
_TINY_SHARE = 0.005  # the share of all tokens that is in sequences so short that rows need not take all they could hold


class Corruption(Protocol):
    """Corruption of sequences by an objective, before layout."""

    @property
    def copies(self) -> int | None:
        """After so many epochs the same corruptions come again (static masking); None: never."""

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        """Bounds of how long a sequence of n tokens becomes: source and target; no target where there is one side."""

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        """Return the corrupted sequences, as many and in the same order; possibly none."""

    def targets(self, tokens: int, sequences: int) -> int:
        """Slots for the targets of a batch of so many tokens (of the side that is predicted) in so many sequences.

        A bound, or where their number is random what it stays below but for once in a thousand million batches.
        """


@runtime_checkable
class LengthPredictingCorruption(Corruption, Protocol):
    """Corruption that predicts tighter lengths from sides, special tokens and its own random draws.

    What is drawn follows from the counters alone, so it can be drawn twice: for the plan, and for the sequences.
    """

    @property
    def has_random_lengths(self) -> bool:
        """Return True if the lengths of a sample vary between epochs."""

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        """`lengths` of these sequences with the counters they will be corrupted with; without: whatever is drawn."""


class BatchStream:
    """Batches of one shape out of one kind of samples, from any step on.

    If the shape does not fix the number of sequences per row, it is computed from the lengths, so that shapes stay the
    same in all epochs. With `fixed_slots` the target slots are fixed too, by the corruption's bound. With a `cache`
    folder the first process that needs a plan computes it for all.
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
    ) -> None:
        self.fixed_slots = fixed_slots
        self.samples, self.seed, self.corruption, self.mixing = samples, seed, corruption, mixing
        self._base_shape, self._words, self._sentences, self._window, self._cache = (
            shape,
            words,
            sentences,
            window,
            cache,
        )
        self._starts = [0]  # the first step of the epochs planned so far, and the one after them
        self._epochs: dict[int, tuple[EpochOrder, PackingPlan]] = {}
        if not len(samples):
            raise DataError(
                f"{samples.shards.directory}: split '{samples.shards.split}' has no tokens to make samples of"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        constructor = partial(
            BatchStream,
            self.samples,
            self._base_shape,
            seed=self.seed,
            corruption=self.corruption,
            mixing=self.mixing,
            words=self._words,
            sentences=self._sentences,
            window=self._window,
            cache=self._cache,
            fixed_slots=self.fixed_slots,
        )
        return constructor, (), {"_starts": [*self._starts]}

    def __getitem__(self, step: int) -> Batch:
        return self.batch(step)

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """The batch of a step, or one of several equal parts of its rows: a rank's, a micro-batch's."""
        sequences, row = self.read_sequences(step, part=part, parts=parts)
        shape = self.compute_part_shape(parts)
        if self._base_shape.slots is None and shape.slots is not None and sequences.targets is not None:
            # NOTE: where their number is random it is too large once in a thousand million batches: compiled anew then.
            target_count = int((sequences.targets != IGNORE_INDEX).sum())
            while shape.slots < shape.length and shape.rows * shape.slots < target_count:
                shape = replace(shape, slots=min(2 * shape.slots + 1, shape.length))
        return lay_out(sequences, row, shape)

    def compute_part_shape(self, parts: int = 1) -> BatchShape:
        """The shape of a batch, or of one of several parts of it."""
        shape = self.shape.divide(parts)
        if not self.fixed_slots or self.corruption is None or shape.slots is not None:
            return shape
        if has_random_lengths(self.corruption) and shape.source is None:
            return replace(shape, slots=self._estimate_slots(shape.rows))
        sequences, rows = self._epoch_size
        sequence_count = -(-sequences * shape.rows // rows)  # on average
        return replace(
            shape, slots=-(-self.corruption.targets(shape.rows * shape.length, sequence_count) // shape.rows)
        )

    @cached_property
    def _epoch_size(self) -> tuple[int, int]:
        """The sequences and the rows of an epoch."""
        return len(self.plan(0).order), len(self.plan(0).starts) - 1

    def _estimate_slots(self, rows: int) -> int:
        """Target slots of each of so many rows, where what is drawn decides which sequences share a row.

        They are six deviations above the mean of rows that were looked at; of few, as many as there are tokens.
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
        """Return the sequences of a batch and the row of each."""
        epoch, index = self.locate_step(step)
        draws, plan = self._get_epoch(epoch)
        samples, row = plan.get_batch(index, part, parts)
        cut = self.samples.cut(draws.take(samples), words=self._words, sentences=self._sentences)
        if self.corruption is not None:
            cut = self.corruption.corrupt(cut, Counters.from_sequences(self.seed, cut, copies=self.corruption.copies))
        return cut, row

    def iter_batches(
        self, start: int = 0, stop: int | None = None, *, part: int = 0, parts: int = 1
    ) -> Iterator[Batch]:
        """The batches from one step to before another, or for ever."""
        step = start
        while stop is None or step < stop:
            yield self.batch(step, part=part, parts=parts)
            step += 1

    def locate_step(self, step: int) -> tuple[int, int]:
        """The epoch a step is in, and its number inside it.

        Where epochs differ in their number of batches, those before are planned once; their counts travel along.
        """
        if step < 0:
            raise UsageError(f"step must be >= 0, got {step}")
        if self._batches_per_epoch is not None:
            return divmod(step, self._batches_per_epoch)
        while step >= self._starts[-1]:
            self.get_steps(len(self._starts) - 1)
        epoch = bisect.bisect_right(self._starts, step) - 1
        return epoch, step - self._starts[epoch]

    def get_steps(self, epoch: int) -> range:
        """The steps of an epoch."""
        if self._batches_per_epoch is not None:
            return range(epoch * self._batches_per_epoch, (epoch + 1) * self._batches_per_epoch)
        while len(self._starts) <= epoch + 1:
            self._starts.append(self._starts[-1] + self.plan(len(self._starts) - 1).batch_count)
        return range(*self._starts[epoch : epoch + 2])

    @property
    def packing_method(self) -> str | None:
        """Name of the packing method, for resumed runs; None for the first method."""
        has_new_method = self._base_shape.source is not None or isinstance(self.corruption, LengthPredictingCorruption)
        return "2: both sides at once, by the lengths that are drawn" if has_new_method else None

    def plan(self, epoch: int) -> PackingPlan:
        """The plan of an epoch: its `fill`, its number of `iter_batches`."""
        return self._get_epoch(epoch)[1]

    @cached_property
    def _batches_per_epoch(self) -> int | None:
        """Number of batches per epoch, if it is constant: one window packs equal lengths equally."""
        alike = self.mixing is None and len(self.samples) <= self._window and not has_random_lengths(self.corruption)
        return self.plan(0).batch_count if alike else None

    @cached_property
    def mixture(self) -> SourceMixture:
        """Mixture of the sources in an epoch; `count_epochs(n)` counts the passes over each source after n rounds."""
        names = self.samples.shards.index.sources
        return SourceMixture.from_samples(self.mixing, self.samples.sources, self.samples.lengths(), names)

    @cached_property
    def shape(self) -> BatchShape:
        """The shape of every batch, with the number of sequences a row may hold."""
        if self._base_shape.sequences is not None:
            return self._base_shape
        # Where lengths are drawn, an epoch shows them.
        draws = self._draw_epoch(0) if has_random_lengths(self.corruption) else None
        rates = self.mixture.compute_rates() if draws is None else np.ones(len(draws))
        max_sequences = [
            _estimate_max_sequences(lengths, room, rates)
            for lengths, room in zip(
                compute_row_lengths(self.samples, self.corruption, draws),
                (self._base_shape.length, self._base_shape.source),
                strict=True,
            )
            if lengths is not None and room is not None
        ]
        return replace(self._base_shape, sequences=min(max_sequences))

    def _get_epoch(self, epoch: int) -> tuple[EpochOrder, PackingPlan]:
        if epoch not in self._epochs:
            while len(self._epochs) >= _MAX_PLANS:
                del self._epochs[next(iter(self._epochs))]
            draws = self._draw_epoch(epoch)
            lengths, source = compute_row_lengths(self.samples, self.corruption, draws)
            self._epochs[epoch] = (
                draws,
                build_plan(
                    lengths,
                    self.shape,
                    seed=self.seed,
                    epoch=epoch,
                    source=source,
                    window=self._window,
                    cache=self._cache,
                ),
            )
        return self._epochs[epoch]

    def _draw_epoch(self, epoch: int) -> EpochOrder:
        return self.samples.assign_partners(self.mixture.draw_order(self.seed, epoch))


class StagedStream:
    """Streams one after another: those of the stages of a length schedule."""

    def __init__(self, stages: Sequence[LengthStage], open_stream: Callable[[LengthStage], BatchStream]) -> None:
        self.stages = tuple(stages)
        self.streams = tuple(open_stream(stage) for stage in self.stages)

    def __getitem__(self, step: int) -> Batch:
        return self.batch(step)

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """The batch of a step, or a part of it; the last stage goes on for ever."""
        number = sum(step >= stage.last for stage in self.stages[:-1])
        return self.streams[number].batch(step - self.stages[number].first, part=part, parts=parts)


def compute_row_lengths(
    samples: Samples, corruption: Corruption | None, draws: EpochOrder | None = None
) -> tuple[Ints, Ints | None]:
    """Return the room that each draw (or sample) needs in a row: decoder side, encoder side."""
    if corruption is None:
        return samples.lengths(draws), None
    rng = None if draws is None else Counters.from_sequences(draws.seed, draws, copies=corruption.copies)
    source, target = predict_lengths(corruption, samples.measure_lengths(draws), rng)
    return (source, None) if target is None else (target, source)


def has_random_lengths(corruption: Corruption | None) -> bool:
    """Return True if the lengths of a sample vary between epochs."""
    return isinstance(corruption, LengthPredictingCorruption) and corruption.has_random_lengths


def predict_lengths(corruption: Corruption, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
    """Return the tightest bounds of source and target lengths that a corruption offers."""
    return (
        corruption.predict_lengths(lengths, rng)
        if isinstance(corruption, LengthPredictingCorruption)
        else corruption.lengths(lengths.lengths)
    )


def _estimate_max_sequences(lengths: Ints, room: int, rates: np.ndarray[Any, np.dtype[np.float64]]) -> int:
    """Sequences a row must be able to take so that only tiny ones, with few of all tokens, could ask for more."""
    tokens = np.cumsum(np.bincount(lengths, weights=lengths * rates))
    short = int(np.searchsorted(tokens, _TINY_SHARE * tokens[-1], side="right"))
    return min(max(room // max(short, 1), _MIN_SEQUENCES), room)
