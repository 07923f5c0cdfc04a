"""Mixing of sources: the share of each source in the training tokens.

    WeightedMixing(weights=(0.8, 0.2))        # the share of each source in the training tokens
    SmoothedMixing(alpha=0.3)                 # shares proportional to size ** alpha: 0.7 in mBERT, 0.3 in XLM-R
    LimitedMixing(limit=2**16)                # proportional to the number of samples, capped at the limit (T5)
    None                                      # every sample once per epoch

A *round* reads about as many tokens as the data has, and a fixed number of samples from each source. Each source counts
its epochs separately and reshuffles in each: no sample repeats before all samples of the source have been read. Every
draw of a round is a function of (seed, round) alone.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import Fraction, Ge, Positive, spec
from pretune.core.errors import DataError, UsageError
from pretune.data.counters import EpochOrder, Purpose, shuffle_by_key
from pretune.data.sequences import Ints

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
        shares = mixing.compute_shares(sizes, counts)
        for name, share, size in zip(names, shares, sizes, strict=True):
            if share > 0 and not size:
                raise DataError(
                    f"source '{name}' has the weight {share:.3g} but no samples; remove it or set its weight to 0"
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
