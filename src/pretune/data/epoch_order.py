"""Order of the samples of an epoch, before packing."""

from dataclasses import dataclass
from typing import NamedTuple

from pretune.data.ragged import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """n samples in the order they are to be read; whatever is random about one follows from (seed, epoch, sample)."""

    seed: int
    round: int  # the how-manieth pass of the plan
    samples: Ints  # [n]
    epochs: Ints  # [n] for the how-manieth time each is read; `round`, unless a mixture repeats or spares samples
    partners: Ints | None = None  # [n] the sample whose second segment is read with it
    labels: Ints | None = None  # [n] 0 its own second segment, 1 another or in the wrong order, IGNORE if it has none

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, selection: Ints) -> "EpochOrder":
        """Some of the draws."""
        return EpochOrder(
            seed=self.seed,
            round=self.round,
            samples=self.samples[selection],
            epochs=self.epochs[selection],
            partners=None if self.partners is None else self.partners[selection],
            labels=None if self.labels is None else self.labels[selection],
        )


class SampleLengths(NamedTuple):
    """Lengths of samples before they are read: tokens of each side and special tokens."""

    first_lengths: Ints  # [n] tokens, or those of the first side
    second_lengths: Ints  # [n] of the second side, 0 where there is none
    special_counts: Ints  # [n] special tokens among all of these

    @property
    def lengths(self) -> Ints:
        """[n] of both sides together."""
        return self.first_lengths + self.second_lengths

    def take(self, selection: Ints) -> "SampleLengths":
        """Of some of them."""
        return SampleLengths(*(column[selection] for column in self))
