"""Random numbers of many sequences at once, each a function of (seed, epoch, sample) and of its place.

    rng = Counters.from_sequences(seed, sequences)
    rng.uniform(0)                        # [S] one number per sequence, use 0
    rng.uniform(1, sequences.lengths)     # [T] one number per token, use 1

Nothing depends on which sequences share a batch, a worker or a rank. Different uses of one objective take different
numbers `use`; the purposes below keep the parts of the pipeline apart.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.core.seed import extend_mix, mix
from pretune.data.epoch_order import EpochOrder
from pretune.data.ragged import Ints, spread
from pretune.data.sequences import Sequences


class Purpose(IntEnum):
    """Purpose of random numbers: the second part of every key. NOTE: a changed number changes every run."""

    ORDER = 1  # of the samples of an epoch
    ROUND = 2  # of the draws of a mixture
    ROWS = 3  # of the rows of a window
    BROKEN_PAIR = 4  # which pairs are broken
    PARTNER = 5  # where their second segments come from
    ROTATION = 6
    CORRUPT = 7


def derive_keys(seed: int, purpose: Purpose, epochs: Ints, samples: Ints) -> NDArray[np.uint64]:
    """`mix(seed, purpose, epoch, sample)` of each sample."""
    return extend_mix(extend_mix(np.uint64(mix(seed, purpose)), epochs), samples)


def to_uniform(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert random bits to numbers in [0, 1)."""
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def shuffle_by_key(seed: int, purpose: Purpose, epoch: int, numbers: Ints) -> Ints:
    """Return the numbers sorted by key: a permutation that does not depend on the release of numpy."""
    keys = extend_mix(np.uint64(mix(seed, purpose, epoch)), numbers)
    return numbers[np.argsort(keys, kind="stable")]


@dataclass(frozen=True, slots=True)
class Counters:
    """Counter-based random numbers of sequences: the `rng` of `corrupt(sequences, rng)`."""

    keys: NDArray[np.uint64]  # [S]

    @classmethod
    def from_sequences(cls, seed: int, sequences: Sequences | EpochOrder, *, copies: int | None = None) -> "Counters":
        """Return the counters of sequences with samples and epochs, or of draws.

        With `copies` the corruptions repeat after this many epochs (static masking).
        """
        if sequences.samples is None or sequences.epochs is None:
            raise UsageError(
                "the sequences have no sample numbers and epochs, so no random numbers can be derived for them"
            )
        epochs = sequences.epochs if copies is None else sequences.epochs % copies
        return cls(derive_keys(seed, Purpose.CORRUPT, epochs, sequences.samples))

    def derive(self, number: int) -> "Counters":
        """Derive counters for a part of a mixture or a second corruption."""
        return Counters(extend_mix(self.keys, np.asarray(number + 2**32)))

    def take(self, selection: Ints) -> "Counters":
        """Return the counters of some sequences."""
        return Counters(self.keys[selection])

    def bits(self, use: int, lengths: Ints | None = None) -> NDArray[np.uint64]:
        """Return 64 random bits per sequence [S], or with `lengths` per token [T]."""
        states = extend_mix(self.keys, np.asarray(use))
        if lengths is None:
            return states
        return extend_mix(np.repeat(states, lengths), spread(np.zeros_like(lengths), lengths))

    def uniform(self, use: int, lengths: Ints | None = None) -> NDArray[np.float64]:
        """Return numbers in [0, 1) per sequence [S], or with `lengths` per token [T]."""
        return to_uniform(self.bits(use, lengths))
