"""Mixing of sources: the share of each in the tokens read.

    WeightedMixing(weights=(0.8, 0.2))        # the share of each source in the tokens that are read
    SmoothedMixing(alpha=0.3)                 # shares proportional to size ** alpha: 0.7 in mBERT, 0.3 in XLM-R
    LimitedMixing(limit=2**16)                # by numbers of samples, none counting for more than that (T5)
    None                                # everything once per epoch

A *round* reads about as many tokens as there are, and from each source a fixed number of samples. A source goes
through its own samples in its own epochs, each in a new order: none is read again before all have been read. Every draw
of every round is a function of (seed, round) alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.data.counters import Purpose, shuffle_by_key
from pretune.data.epoch_order import EpochOrder
from pretune.data.ragged import Ints

Floats = NDArray[np.float64]


@spec(kind="weighted")
class WeightedMixing:
    """Each source's share of the tokens read, up to a common factor."""

    weights: tuple[float, ...]

    def compute_shares(self, sizes: Floats, counts: Ints | None = None) -> Floats:
        """The weights, of sum 1."""
        weights = np.array(self.weights, dtype=np.float64)
        if len(weights) != len(sizes):
            raise UsageError(f"{len(weights)} weights for {len(sizes)} sources; give one for each")
        if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
            raise UsageError(f"weights must be >= 0, at least one > 0, got {self.weights}")
        return np.asarray(weights / weights.sum())


@spec(kind="smoothed")
class SmoothedMixing:
    """Shares proportional to size ** alpha (Lample and Conneau, 2019): below 1, small sources are read more often."""

    alpha: float = 0.7

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"alpha must be between 0 (equal shares) and 1 (proportional to size), got {self.alpha}")

    def compute_shares(self, sizes: Floats, counts: Ints | None = None) -> Floats:
        """Those of sources of some sizes, of sum 1; nothing stays nothing."""
        parts = sizes / max(sizes.sum(), 1)
        powers = np.where(parts > 0, parts**self.alpha, 0)
        return np.asarray(powers / max(powers.sum(), 1e-300))


@spec(kind="limited")
class LimitedMixing:
    """Samples by how many a source has, `limit` at most, to the power 1 / temperature (Raffel et al., 2020, 3.5.2).

    A temperature of 1 is their examples-proportional mixing, a high one nears equal mixing. Without a limit large
    sources drown small ones: texts without labels are far more than those with.
    """

    limit: int = 2**18
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.limit < 1 or not 1 <= self.temperature < np.inf:
            raise UsageError(f"limit and temperature must be >= 1, got {self.limit} and {self.temperature}")

    def compute_shares(self, sizes: Floats, counts: Ints) -> Floats:
        """Shares of the tokens, which make those of the samples as they should be."""
        rates = np.where(counts > 0, np.minimum(counts, self.limit) ** (1 / self.temperature), 0.0)
        tokens = rates * sizes / np.maximum(counts, 1)
        return np.asarray(tokens / max(tokens.sum(), 1e-300))


Mixing = WeightedMixing | SmoothedMixing | LimitedMixing


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMixture:
    """Number of samples of each source that a round reads. G groups of n samples in all."""

    groups: tuple[Ints, ...]  # the samples of each source
    quotas: Ints  # [G] how many a round reads
    shares: Floats  # [G] of the tokens read

    @classmethod
    def from_samples(
        cls, mixing: Mixing | None, sources: Ints, lengths: Ints, names: tuple[str, ...]
    ) -> "SourceMixture":
        """The mixture of samples that have these sources and lengths."""
        sizes = np.bincount(sources, weights=lengths, minlength=len(names)).astype(np.float64)
        if mixing is None:
            quota = np.array([len(sources)])
            return cls(groups=(np.arange(len(sources)),), quotas=quota, shares=np.ones(1))
        counts = np.bincount(sources, minlength=len(names))
        shares = mixing.compute_shares(sizes, counts)
        for name, share, size in zip(names, shares, sizes, strict=True):
            if share > 0 and not size:
                raise DataError(
                    f"source '{name}' has the weight {share:.3g} but no samples; leave it out or set it to 0"
                )
        quotas = np.rint(counts * shares * sizes.sum() / np.maximum(sizes, 1)).astype(np.int64)
        quotas = np.where(shares > 0, np.maximum(quotas, 1), 0)
        order = np.argsort(sources, kind="stable")
        token_counts = quotas * sizes / np.maximum(counts, 1)
        return cls(
            groups=tuple(np.split(order, np.cumsum(counts)[:-1])),
            quotas=quotas,
            shares=token_counts / max(token_counts.sum(), 1),
        )

    def draw_order(self, seed: int, round: int) -> EpochOrder:
        """Return the samples of one round, in order."""
        samples, epochs = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for group, quota in zip(self.groups, self.quotas.tolist(), strict=True):
            position, end = round * quota, (round + 1) * quota
            while position < end:  # through one epoch of this source after another
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
        """[n] how often a round reads each sample, on average."""
        rates = np.zeros(sum(map(len, self.groups)))
        for group, quota in zip(self.groups, self.quotas, strict=True):
            rates[group] = quota / max(len(group), 1)
        return rates

    def count_epochs(self, rounds: float) -> Floats:
        """[G] how often each source has been read after some rounds."""
        sizes = np.array([len(group) for group in self.groups])
        return np.asarray(rounds * self.quotas / np.maximum(sizes, 1))
