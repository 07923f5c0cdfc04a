"""Number of tokens in the batches of a stream, from packing plans alone: no token is read.

    counter = TokenCounter(stream)
    counter.count_tokens(1000)                                 # tokens of the first thousand batches
    find_steps([counter], lambda steps: [steps], 10_000_000)   # batches that hold ten million tokens

Tokens are those that a model reads, as a training run counts them: special tokens and sentinels included, on both sides
of an encoder-decoder, without filler.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

from pretune.data.sampling import Counters, EpochOrder, SampleLengths
from pretune.data.sequences import Ints
from pretune.data.stream import BatchStream, Corruption, has_random_lengths, predict_lengths

MAX_COUNTED_EPOCHS = 10
"""Epochs that are planned to count their tokens, where epochs differ; later ones are like the mean of these."""


@runtime_checkable
class CountingCorruption(Corruption, Protocol):
    """Corruption whose planned lengths are bounds, and that knows the exact number of tokens all the same."""

    @property
    def has_random_counts(self) -> bool:
        """True if the number of tokens of a sample varies between epochs."""

    def count_tokens(self, lengths: SampleLengths, rng: Counters) -> Ints:
        """Return the tokens of each corrupted sequence, source and target, for the counters that `corrupt` gets."""


def has_random_counts(corruption: Corruption | None) -> bool:
    """Return True if the number of tokens of a corrupted sample varies between epochs."""
    if isinstance(corruption, CountingCorruption):
        return corruption.has_random_counts
    return has_random_lengths(corruption)


def count_corrupted_tokens(corruption: Corruption, lengths: SampleLengths, rng: Counters) -> Ints:
    """Return the tokens of each corrupted sequence, source and target together."""
    if isinstance(corruption, CountingCorruption):
        return corruption.count_tokens(lengths, rng)
    source, target = predict_lengths(corruption, lengths, rng)
    return source if target is None else source + target


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
        if self.stream.batches_per_epoch is None or has_random_counts(self.stream.corruption):
            return None
        return int(self._count_batches(0)[-1])

    def _count_batches(self, epoch: int) -> Ints:
        """Return the tokens of an epoch before each batch, and of all batches: [batches + 1]."""
        if epoch not in self._offsets:
            draws, plan = self.stream.get_epoch(epoch)
            self._offsets[epoch] = plan.accumulate(self._count_sequences(draws))
        return self._offsets[epoch]

    def _count_sequences(self, draws: EpochOrder) -> Ints:
        """Return the tokens of the sequence of each draw, after corruption."""
        corruption, lengths = self.stream.corruption, self.stream.samples.measure_lengths(draws)
        if corruption is None:
            return lengths.lengths
        rng = Counters.from_sequences(draws.seed, draws, copies=corruption.copies)
        return count_corrupted_tokens(corruption, lengths, rng)


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
