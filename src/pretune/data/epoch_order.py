"""Order of the samples of an epoch, before packing."""

from dataclasses import dataclass
from typing import NamedTuple

from pretune.data.ragged import Ints


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
        return EpochOrder(
            seed=self.seed,
            round=self.round,
            samples=self.samples[selection],
            epochs=self.epochs[selection],
            partners=None if self.partners is None else self.partners[selection],
            labels=None if self.labels is None else self.labels[selection],
        )


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
