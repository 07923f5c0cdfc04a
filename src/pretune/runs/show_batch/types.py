"""Values of an example, all from a real corruption and a real batch."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

TokenKind = Literal["text", "special", "mask", "random", "kept", "sentinel"]
"""Kind of an input token; `random` and `kept` tokens are predicted although they look unmasked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """Row of a token table: a value per token, "" for none."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSide:
    """Input of a model, or of one side of it, with the rows below its tokens."""

    name: str
    tokens: tuple[str, ...]
    kinds: tuple[TokenKind, ...]
    rows: tuple[TokenRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMap:
    """Attention mask: a row per query, a column per key."""

    name: str
    queries: tuple[str, ...]
    places: tuple[int, ...]  # of the queries in the input
    keys: tuple[str, ...]
    mask: tuple[tuple[bool, ...], ...]
    cross: bool = False  # keys of another side


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """Term of the loss: a mean over `count` targets, times its weight."""

    name: str
    weight: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSequence:
    """One corrupted sequence."""

    title: str  # "" for a single one
    input: str
    target: str
    sides: tuple[ModelSide, ...]
    attention: tuple[AttentionMap, ...]
    facts: tuple[str, ...]
    terms: tuple[LossTerm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchExample:
    """An objective applied to a text."""

    objective: str
    title: str  # of the objective
    about: str  # description and paper
    settings: dict[str, Any]
    shape: str
    seed: int
    text: tuple[str, ...]
    sequences: tuple[ShownSequence, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        return asdict(self)
