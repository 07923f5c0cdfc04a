"""What an objective does to a sentence, as a value: what `pretune show-batch` draws."""

from pretune.runs.show_batch.build import build_example
from pretune.runs.show_batch.types import (
    AttentionMap,
    BatchExample,
    LossTerm,
    ModelSide,
    ShownSequence,
    TokenKind,
    TokenRow,
)

__all__ = [
    "ShownSequence",
    "BatchExample",
    "TokenKind",
    "TokenRow",
    "ModelSide",
    "AttentionMap",
    "LossTerm",
    "build_example",
]
