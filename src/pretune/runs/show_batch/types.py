"""What is known of an example: all of it read off a real lesson and a real batch, and spelled out."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

TokenKind = Literal["text", "special", "mask", "random", "kept", "sentinel"]
"""What a token that is read is: random and kept ones are to be predicted, and do not look like it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A line under the tokens: a value for each, "" where there is none."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSide:
    """What one model, or one side of it, reads, and what stands under every token."""

    name: str
    tokens: tuple[str, ...]
    kinds: tuple[TokenKind, ...]
    rows: tuple[TokenRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMap:
    """Who may attend to whom: a row for every token that looks, a column for every token that may be seen."""

    name: str
    queries: tuple[str, ...]
    places: tuple[int, ...]  # of the queries in what is read
    keys: tuple[str, ...]
    seen: tuple[tuple[bool, ...], ...]
    cross: bool = False  # the keys are another side's


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """A part of the loss: an average over so many targets, times its weight."""

    name: str
    weight: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSequence:
    """One sequence as a lesson."""

    title: str  # "" where there is only one
    reads: str
    says: str
    sides: tuple[ModelSide, ...]
    sights: tuple[AttentionMap, ...]
    facts: tuple[str, ...]
    terms: tuple[LossTerm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchExample:
    """What an objective does to a text."""

    objective: str
    title: str  # what happens
    about: str  # what is learned from it, and whose it is
    settings: dict[str, Any]
    shape: str
    seed: int
    text: tuple[str, ...]
    drawn: tuple[ShownSequence, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)
