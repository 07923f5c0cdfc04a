"""Inputs, targets and attention masks of an objective on a sentence, as values for `pretune show-batch`."""

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
