"""Draws of an epoch, and counter-based random numbers: each is a function of (seed, epoch, sample) and position.

    rng = Counters.from_sequences(seed, sequences)
    rng.uniform(0)                        # [S] one number per sequence, for use 0
    rng.uniform(1, sequences.lengths)     # [T] one number per token, for use 1

The numbers do not depend on which sequences share a batch, a worker or a rank. An objective gives each of its uses a
different number `use`. `Purpose` separates the random numbers of the parts of the pipeline.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.core.seed import extend_mix, mix
from pretune.data.sequences import Ints, Sequences, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """n draws: samples in reading order. The randomness of a draw is a function of (seed, epoch, sample)."""

    seed: int
    round: int  # index of the pass over the data
    samples: Ints  # [n]
    epochs: Ints  # [n] earlier reads of the sample; equals `round` unless a mixture repeats or skips samples
    partners: Ints | None = None  # [n] the sample that provides the second segment
    labels: Ints | None = (
        None  # [n] 0: intact pair, 1: other second segment or swapped order, IGNORE_INDEX: single segment
    )

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, selection: Ints) -> "EpochOrder":
        """Return the selected draws."""
        partners = None if self.partners is None else self.partners[selection]
        labels = None if self.labels is None else self.labels[selection]
        samples, epochs = self.samples[selection], self.epochs[selection]
        return replace(self, samples=samples, epochs=epochs, partners=partners, labels=labels)


class SampleLengths(NamedTuple):
    """Lengths of samples, known without reading tokens: tokens of each side and special tokens."""

    first_lengths: Ints  # [n] tokens of the sample, or of its first side
    second_lengths: Ints  # [n] tokens of the second side, 0 if there is none
    special_counts: Ints  # [n] special tokens, included in the lengths above

    @property
    def lengths(self) -> Ints:
        """[n] Tokens of both sides together."""
        return self.first_lengths + self.second_lengths

    def take(self, selection: Ints) -> "SampleLengths":
        """Return the lengths of the selected samples."""
        return SampleLengths(*(column[selection] for column in self))


class Purpose(IntEnum):
    """Purpose of random numbers: the second part of every key. NOTE: changing a value changes every run."""

    ORDER = 1  # order of the samples of an epoch
    ROUND = 2  # order of the draws of a mixture
    ROWS = 3  # order of the rows of a packing window
    BROKEN_PAIR = 4  # choice of the broken pairs
    PARTNER = 5  # order of the documents among which broken pairs exchange segments
    ROTATION = 6  # rotation of that order
    CORRUPT = 7  # corruption of a sequence


def derive_keys(seed: int, purpose: Purpose, epochs: Ints, samples: Ints) -> NDArray[np.uint64]:
    """Return `mix(seed, purpose, epoch, sample)` for each sample."""
    return extend_mix(extend_mix(np.uint64(mix(seed, purpose)), epochs), samples)


def to_uniform(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert random bits to numbers in [0, 1)."""
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def shuffle_by_key(seed: int, purpose: Purpose, epoch: int, numbers: Ints) -> Ints:
    """Return the numbers sorted by key: a permutation that does not depend on the numpy version."""
    keys = extend_mix(np.uint64(mix(seed, purpose, epoch)), numbers)
    return numbers[np.argsort(keys, kind="stable")]


@dataclass(frozen=True, slots=True)
class Counters:
    """Counter-based random numbers of sequences: the argument `rng` of `Corruption.corrupt`."""

    keys: NDArray[np.uint64]  # [S]

    @classmethod
    def from_sequences(cls, seed: int, sequences: Sequences | EpochOrder, *, copies: int | None = None) -> "Counters":
        """Return the counters of sequences or of an epoch order.

        With `copies` the corruptions repeat after `copies` epochs (static masking). Raises `UsageError` if the
        sequences have no `samples` or no `epochs`.
        """
        if sequences.samples is None or sequences.epochs is None:
            raise UsageError(
                "random numbers need the samples and epochs of the sequences, which are None; set both fields"
            )
        epochs = sequences.epochs if copies is None else sequences.epochs % copies
        return cls(derive_keys(seed, Purpose.CORRUPT, epochs, sequences.samples))

    def derive(self, number: int) -> "Counters":
        """Return independent counters for part `number` of a mixture or of a corruption."""
        return Counters(extend_mix(self.keys, np.asarray(number + 2**32)))

    def take(self, selection: Ints) -> "Counters":
        """Return the counters of the selected sequences."""
        return Counters(self.keys[selection])

    def bits(self, use: int, lengths: Ints | None = None) -> NDArray[np.uint64]:
        """Return 64 random bits per sequence [S], or per token [T] if `lengths` are given."""
        states = extend_mix(self.keys, np.asarray(use))
        if lengths is None:
            return states
        return extend_mix(np.repeat(states, lengths), spread(np.zeros_like(lengths), lengths))

    def uniform(self, use: int, lengths: Ints | None = None) -> NDArray[np.float64]:
        """Return uniform numbers in [0, 1) per sequence [S], or per token [T] if `lengths` are given."""
        return to_uniform(self.bits(use, lengths))
