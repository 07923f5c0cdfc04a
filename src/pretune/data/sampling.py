"""Sampling: the draws of an epoch, their random numbers, and the mixing of sources.

Random numbers are counter-based: each is a function of (seed, epoch, sample) and position.

    rng = Counters.from_sequences(seed, sequences)
    rng.uniform(0)                        # [S] one number per sequence, for use 0
    rng.uniform(1, sequences.lengths)     # [T] one number per token, for use 1

The numbers do not depend on which sequences share a batch, a worker or a rank. An objective gives each of its uses a
different number `use`. `Purpose` separates the random numbers of the parts of the pipeline.

Mixing sets the share of each source in the training tokens:

    WeightedMixing(weights=(0.8, 0.2))        # the share of each source in the training tokens
    SmoothedMixing(alpha=0.3)                 # shares proportional to size ** alpha: 0.7 in mBERT, 0.3 in XLM-R
    LimitedMixing(limit=2**16)                # proportional to the number of samples, capped at the limit (T5)
    None                                      # every sample once per epoch

A *round* reads about as many tokens as the data has, and a fixed number of samples from each source. Each source counts
its epochs separately and reshuffles in each: no sample repeats before all samples of the source have been read. Every
draw of a round is a function of (seed, round) alone.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import Fraction, Ge, Positive, spec
from pretune.core.errors import DataError, UsageError
from pretune.core.seed import extend_mix, mix
from pretune.data.sequences import Bools, Ints, Sequences, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """n draws: samples in reading order. The randomness of a draw is a function of (seed, epoch, sample)."""

    seed: int
    round: int  # index of the pass over the data
    samples: Ints  # [n]
    epochs: Ints  # [n] earlier reads of the sample; equals `round` unless a mixture repeats or skips samples
    partners: Ints | None = None  # [n] the sample that provides the second segment
    # [n] 0: intact pair, 1: other second segment or swapped order, IGNORE_INDEX: single segment
    labels: Ints | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, selection: Ints) -> "EpochOrder":
        """Return the selected draws."""
        partners = None if self.partners is None else self.partners[selection]
        labels = None if self.labels is None else self.labels[selection]
        samples, epochs = self.samples[selection], self.epochs[selection]
        return replace(self, samples=samples, epochs=epochs, partners=partners, labels=labels)


class SampleLengths(NamedTuple):
    """Lengths of samples, known without reading tokens: tokens of each side, special tokens, and their ends."""

    first_lengths: Ints  # [n] tokens of the sample, or of its first side
    second_lengths: Ints  # [n] tokens of the second side, 0 if there is none
    special_counts: Ints  # [n] special tokens, included in the lengths above
    ends_in_special: Bools  # [n] True if the last token is special

    @property
    def lengths(self) -> Ints:
        """[n] Tokens of both sides together."""
        return self.first_lengths + self.second_lengths

    def take(self, selection: Ints) -> "SampleLengths":
        """Return the lengths of the selected samples."""
        return SampleLengths._make(column[selection] for column in self)


class Purpose(IntEnum):
    """Purpose of random numbers: the second part of every key. NOTE: changing a value changes every run."""

    ORDER = 1  # order of the samples of an epoch
    ROUND = 2  # order of the draws of a mixture
    ROWS = 3  # order of the rows of a packing window
    BROKEN_PAIR = 4  # choice of the broken pairs
    PARTNER = 5  # order of the documents among which broken pairs exchange segments
    ROTATION = 6  # rotation of that order
    CORRUPT = 7  # corruption of a sequence
    WINDOWS = 8  # lengths of the windows of contiguous streams


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


Floats = NDArray[np.float64]


@spec(kind="weighted")
class WeightedMixing:
    """Share of each source in the training tokens, given as weights up to a common factor."""

    weights: tuple[float, ...]

    def compute_shares(self, sizes: Floats, counts: Ints | None = None) -> Floats:
        """Return the weights, normalised to sum 1.

        Raises `UsageError` if the number of weights differs from the number of sources, or a weight is invalid.
        """
        weights = np.array(self.weights, dtype=np.float64)
        if len(weights) != len(sizes):
            raise UsageError(f"{len(weights)} weights for {len(sizes)} sources; give one weight per source")
        if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
            raise UsageError(f"weights must be finite and >= 0, at least one > 0, got {self.weights}")
        return np.asarray(weights / weights.sum())


@spec(kind="smoothed")
class SmoothedMixing:
    """Shares proportional to size ** alpha (Lample and Conneau, 2019): alpha < 1 samples small sources more often."""

    alpha: Fraction = 0.7

    def compute_shares(self, sizes: Floats, counts: Ints | None = None) -> Floats:
        """Return the share of each source, of sum 1; an empty source has the share 0."""
        parts = sizes / max(sizes.sum(), 1)
        powers = np.where(parts > 0, parts**self.alpha, 0)
        return np.asarray(powers / max(powers.sum(), 1e-300))


@spec(kind="limited")
class LimitedMixing:
    """Sampling rates proportional to min(samples, limit) ** (1 / temperature) (Raffel et al., 2020, 3.5.2).

    A temperature of 1 is their examples-proportional mixing; a high temperature approaches equal mixing. Without a
    limit large sources dominate small ones: there is far more unlabelled text than labelled text.
    """

    limit: Positive[int] = 2**18
    temperature: Annotated[float, Ge(1)] = 1.0

    def compute_shares(self, sizes: Floats, counts: Ints) -> Floats:
        """Return the share of each source in the tokens that gives these sampling rates."""
        rates = np.where(counts > 0, np.minimum(counts, self.limit) ** (1 / self.temperature), 0.0)
        tokens = rates * sizes / np.maximum(counts, 1)
        return np.asarray(tokens / max(tokens.sum(), 1e-300))


Mixing = WeightedMixing | SmoothedMixing | LimitedMixing


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMixture:
    """Number of samples that a round reads from each source. Legend: G sources, n samples in total."""

    groups: tuple[Ints, ...]  # the samples of each source
    quotas: Ints  # [G] samples per round
    shares: Floats  # [G] share of the training tokens

    @classmethod
    def from_samples(
        cls, mixing: Mixing | None, sources: Ints, lengths: Ints, names: tuple[str, ...]
    ) -> "SourceMixture":
        """Return the mixture of samples with these sources and lengths; `names` are those of the sources.

        Raises `DataError` if a source has a weight above 0 but no samples.
        """
        sizes = np.bincount(sources, weights=lengths, minlength=len(names)).astype(np.float64)
        if mixing is None:
            quota = np.array([len(sources)])
            return cls(groups=(np.arange(len(sources)),), quotas=quota, shares=np.ones(1))
        counts = np.bincount(sources, minlength=len(names))
        if isinstance(mixing, WeightedMixing) and len(mixing.weights) < len(names):
            unused_count = len(names) - len(mixing.weights)  # sources of validation text come last
            if not counts[-unused_count:].any():
                mixing = replace(mixing, weights=(*mixing.weights, *[0.0] * unused_count))
        shares = mixing.compute_shares(sizes, counts)
        for name, share, size in zip(names, shares, sizes, strict=True):
            if share > 0 and not size:
                raise DataError(
                    f"source '{name}' has the weight {share:.3g} but no samples; remove it or set its weight to 0"
                )
        quotas = np.rint(counts * shares * sizes.sum() / np.maximum(sizes, 1)).astype(np.int64)
        quotas = np.where(shares > 0, np.maximum(quotas, 1), 0)
        groups = np.split(np.argsort(sources, kind="stable"), np.cumsum(counts)[:-1])
        token_counts = quotas * sizes / np.maximum(counts, 1)
        return cls(groups=tuple(groups), quotas=quotas, shares=token_counts / max(token_counts.sum(), 1))

    def draw_order(self, seed: int, round: int) -> EpochOrder:
        """Return the samples of one round, in reading order."""
        samples, epochs = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for group, quota in zip(self.groups, self.quotas.tolist(), strict=True):
            position, end = round * quota, (round + 1) * quota
            while position < end:  # one epoch of this source after another
                epoch, offset = divmod(position, len(group))
                selection = shuffle_by_key(seed, Purpose.ORDER, epoch, group)[offset : offset + end - position]
                samples.append(selection)
                epochs.append(np.full(len(selection), epoch))
                position += len(selection)
        order = EpochOrder(seed=seed, round=round, samples=np.concatenate(samples), epochs=np.concatenate(epochs))
        if len(self.groups) == 1:
            return order
        return order.take(shuffle_by_key(seed, Purpose.ROUND, round, np.arange(len(order))))

    def compute_rates(self) -> Floats:
        """Return the average number of reads of each sample per round [n]."""
        rates = np.zeros(sum(map(len, self.groups)))
        for group, quota in zip(self.groups, self.quotas, strict=True):
            rates[group] = quota / max(len(group), 1)
        return rates

    def count_epochs(self, rounds: float) -> Floats:
        """Return the number of epochs of each source after some rounds [G]."""
        sizes = np.array([len(group) for group in self.groups])
        return np.asarray(rounds * self.quotas / np.maximum(sizes, 1))
