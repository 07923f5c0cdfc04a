"""Contiguous streams: row s of every batch continues row s of the batch before it, for a model with a carried state.

    stream = ContiguousStream(blocks, BatchShape(rows=80, length=70), seed=0, corruption=corruption, varies=True)
    stream[12]          # window 12 of 80 streams; `continues` is False for the first window of an epoch

The concatenated documents are divided into S streams of equal length, the same in every epoch; at most S - 1 tokens at
the end are not read. A window is read with the token after it, so that its last token has a target too.

    text      a b c d e f g h i j          S = 2
    streams   a b | c d | e                windows 0, 1, 2
              f g | h i | j

In training the lengths of windows may vary from step to step (Merity et al., 2018, section 5): the same tokens would
otherwise always be at an end, and have few gradients. A window has a base length with probability 0.95, else half of
it, plus a normal deviation of five tokens; the trainer scales the learning rate by its length.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np

from pretune.core.errors import DataError, UsageError
from pretune.core.seed import extend_mix, mix
from pretune.core.types import Batch
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape, PackingPlan
from pretune.data.samples import BlockSamples
from pretune.data.sampling import Counters, EpochOrder, Purpose
from pretune.data.sequences import Ints, Sequences
from pretune.data.stream import BatchStream, Corruption

BASE_SHARE, DEVIATION, MIN_LENGTH = 0.95, 5.0, 5
"""Probability of the base length, standard deviation of the lengths, and the shortest one, in tokens."""


class ContiguousStream(BatchStream):
    """Windows of S = `shape.rows` streams, of `shape.length` tokens, or around it if it `varies`.

    Raises `DataError` if a stream is shorter than one window.
    """

    samples: BlockSamples

    def __init__(
        self, samples: BlockSamples, shape: BatchShape, *, seed: int, corruption: Corruption, varies: bool = False
    ) -> None:
        super().__init__(samples, replace(shape, sequences=1), seed=seed, corruption=corruption)
        self.varies, self.stream_length = varies, samples.token_count // shape.rows
        self._bounds: tuple[int, Ints] | None = None  # of the last epoch
        if self.stream_length < shape.length:
            shards = samples.shards
            raise DataError(
                f"{shards.directory}: split '{shards.split}' has {samples.token_count:,} tokens: each of {shape.rows} "
                f"streams has {self.stream_length}, fewer than a window of {shape.length}; lower train.batch_tokens "
                "or data.max_length, or add text"
            )

    @cached_property
    def batches_per_epoch(self) -> int | None:
        return None if self.varies else len(self.compute_bounds(0)) - 1

    def compute_bounds(self, epoch: int) -> Ints:
        """Return the starts of the windows of an epoch in their stream, and its end."""
        if self._bounds is None or self._bounds[0] != epoch:
            base, total = self.shape.length, self.stream_length
            inner = np.arange(base, total, base)
            if self.varies:
                ends = np.cumsum(draw_window_lengths(base, total // MIN_LENGTH + 1, self.seed, epoch))
                inner = ends[ends < total]
            self._bounds = epoch, np.concatenate(([0], inner, [total]))
        return self._bounds[1]

    def get_epoch(self, epoch: int) -> tuple[EpochOrder, PackingPlan]:
        """Return the draws and the plan of an epoch: one window of every stream after another."""
        if epoch not in self._epochs:
            count, rows = len(self.compute_bounds(epoch)) - 1, self.shape.rows
            numbers = np.arange(count * rows)
            draws = EpochOrder(seed=self.seed, round=epoch, samples=numbers, epochs=np.full_like(numbers, epoch))
            plan = PackingPlan(order=numbers, starts=np.arange(count * rows + 1), rows=rows, fill=1.0)
            self._epochs = {epoch: (draws, plan)}
        return self._epochs[epoch]

    def count_tokens(self, draws: EpochOrder) -> Ints:
        """Return the tokens of each window."""
        return np.diff(self.compute_bounds(draws.round))[draws.samples // self.shape.rows]

    def read_sequences(self, step: int, *, part: int = 0, parts: int = 1) -> tuple[Sequences, Ints]:
        """Return the corrupted windows of a step, or of a part of the streams, and the row of each."""
        epoch, index = self.locate_step(step)
        if not 0 <= part < parts or self.shape.rows % parts:
            raise UsageError(f"part {part} of {parts} is not an equal part of {self.shape.rows} streams")
        rows = self.shape.rows // parts
        streams, (first, last) = part * rows + np.arange(rows), self.compute_bounds(epoch)[index : index + 2]
        assert self.corruption is not None
        starts, stops = (streams * self.stream_length + bound for bound in (first, last))
        ends = np.minimum(stops + self.corruption.lookahead, self.samples.token_count)
        windows = replace(
            self.samples.cut_ranges(starts, ends),
            samples=index * self.shape.rows + streams,
            epochs=np.full(rows, epoch),
        )
        counters = Counters.from_sequences(self.seed, windows, copies=self.corruption.copies)
        return self.corruption.corrupt(windows, counters).cut_ends(stops - starts), np.arange(rows)

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        sequences, row = self.read_sequences(step, part=part, parts=parts)
        shape = BatchShape(rows=len(row), length=int(sequences.lengths[0]), sequences=1)
        return replace(lay_out(sequences, row, shape), continues=self.locate_step(step)[1] > 0)


def draw_window_lengths(base: int, count: int, seed: int, epoch: int) -> Ints:
    """Return the lengths of the windows of an epoch around a base length, at least five tokens."""
    keys = Counters(extend_mix(np.uint64(mix(seed, Purpose.WINDOWS, epoch)), np.arange(count)))
    radius = np.sqrt(-2 * np.log1p(-keys.uniform(1)))  # Box and Muller (1958)
    deviations = DEVIATION * radius * np.cos(2 * np.pi * keys.uniform(2))
    means = np.where(keys.uniform(0) < BASE_SHARE, base, base / 2)
    return np.asarray(np.maximum(means + deviations, MIN_LENGTH), dtype=np.int64)
