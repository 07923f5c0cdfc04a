"""Language modelling: predict the next token, at every position.

Paper: Radford et al. (2018); the idea is as old as Shannon (1951). Input: documents, or blocks of many laid end to end.
Siblings: `prefix` lets the first part see itself in both directions; `bidirectional` reads both ways with two stacks.

    tokens   The  cat  sat  down
    targets  cat  sat  down -
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from torch import Tensor

from pretune.core.config import spec
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.counters import Counters
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.objectives.base import ModelShape, PretrainingModel, Vocabulary, check_shape, count_vocabulary_targets


@spec
class Causal:
    """Next token at every position (GPT)."""

    shapes: ClassVar[tuple[ModelShape, ...]] = ("decoder",)
    words: ClassVar[bool] = False
    sentences: ClassVar[bool] = False
    pairs: ClassVar[None] = None

    def bind(self, vocabulary: Vocabulary, shape: ModelShape) -> "CausalCorruption":
        check_shape("causal", shape, self.shapes)
        return CausalCorruption()

    def to_evaluation(self) -> Self:
        return self

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": count_vocabulary_targets(batch)}

    def loss(self, model: PretrainingModel, batch: Batch) -> Loss:
        return model.loss(model.states(batch), batch)


@dataclass(frozen=True, slots=True)
class CausalCorruption:
    """Labels only: nothing is corrupted."""

    copies: int | None = None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return n, None

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        return replace(sequences, targets=find_next_tokens(sequences))

    def targets(self, tokens: int, sequences: int) -> int:
        return tokens


def find_next_tokens(sequences: Sequences) -> Ints:
    """[T] the token after each; IGNORE after the last of a sequence."""
    after = np.append(sequences.tokens[1:], IGNORE_INDEX)[: len(sequences.tokens)]
    after[sequences.offsets[1:][sequences.lengths > 0] - 1] = IGNORE_INDEX
    return after
