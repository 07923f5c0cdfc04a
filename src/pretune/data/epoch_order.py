"""Draws: what a pass over the data reads, in order, before it is packed."""

from dataclasses import dataclass
from typing import NamedTuple

from pretune.data.ragged import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """n samples in the order they are to be read; whatever is random about one follows from (seed, epoch, sample)."""

    seed: int
    round: int  # the how-manieth pass of the plan
    samples: Ints  # [n]
    epochs: Ints  # [n] for the how-manieth time each is read; `round`, unless a mixture repeats or spares samples
    seconds: Ints | None = None  # [n] the sample whose second segment is read with it
    labels: Ints | None = None  # [n] 0 its own second segment, 1 another or in the wrong order, IGNORE if it has none

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, which: Ints) -> "Draws":
        """Some of the draws."""
        return Draws(
            seed=self.seed,
            round=self.round,
            samples=self.samples[which],
            epochs=self.epochs[which],
            seconds=None if self.seconds is None else self.seconds[which],
            labels=None if self.labels is None else self.labels[which],
        )


class Known(NamedTuple):
    """What is known of sequences before they are cut: how many tokens they have, and of what kind."""

    first: Ints  # [n] tokens, or those of the first side
    second: Ints  # [n] of the second side, 0 where there is none
    special: Ints  # [n] special tokens among all of these

    @property
    def lengths(self) -> Ints:
        """[n] of both sides together."""
        return self.first + self.second

    def take(self, which: Ints) -> "Known":
        """Of some of them."""
        return Known(*(column[which] for column in self))
