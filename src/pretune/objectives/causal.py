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
from pretune.core.types import IGNORE, Batch, Loss
from pretune.data.counters import Counters
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.objectives.base import ModelShape, Reader, Vocabulary, check_shape, vocabulary_count


@spec
class Causal:
    """Next token at every position (GPT)."""

    shapes: ClassVar[tuple[ModelShape, ...]] = ("decoder",)
    words: ClassVar[bool] = False
    sentences: ClassVar[bool] = False
    pairs: ClassVar[None] = None

    def open(self, vocabulary: Vocabulary, shape: ModelShape) -> "CausalLesson":
        check_shape("causal", shape, self.shapes)
        return CausalLesson()

    def evaluation(self) -> Self:
        return self

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": vocabulary_count(batch)}

    def loss(self, model: Reader, batch: Batch) -> Loss:
        return model.loss(model.states(batch), batch)


@dataclass(frozen=True, slots=True)
class CausalLesson:
    """Labels only: nothing is corrupted."""

    copies: int | None = None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return n, None

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        return replace(sequences, targets=next_tokens(sequences))

    def targets(self, tokens: int, sequences: int) -> int:
        return tokens


def next_tokens(sequences: Sequences) -> Ints:
    """[T] the token after each; IGNORE after the last of a sequence."""
    after = np.append(sequences.tokens[1:], IGNORE)[: len(sequences.tokens)]
    after[sequences.offsets[1:][sequences.lengths > 0] - 1] = IGNORE
    return after
