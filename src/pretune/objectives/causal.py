"""Causal language modelling: predict the next token at every position.

Paper: Radford et al. (2018); the idea is as old as Shannon (1951). Input: documents or packed blocks.
Siblings: `prefix` has bidirectional attention over the first part; `bidirectional` adds a right-to-left stack.

    tokens   The  cat  sat  down
    targets  cat  sat  down -
"""

from dataclasses import dataclass, replace

import numpy as np

from pretune.core.config import spec
from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import Counters
from pretune.data.sequences import Ints, Sequences
from pretune.objectives.base import BaseCorruption, ModelShape, Objective, Vocabulary


@spec(kind="causal")
class CausalLM(Objective):
    """Next token at every position (GPT)."""

    shapes = ("decoder",)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "CausalCorruption":
        return CausalCorruption()


@dataclass(frozen=True, slots=True)
class CausalCorruption(BaseCorruption):
    """Next-token targets; the tokens stay unchanged."""

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        return replace(sequences, targets=find_next_tokens(sequences))


def find_next_tokens(sequences: Sequences) -> Ints:
    """Return the next token of each [T]; IGNORE_INDEX at the end of a sequence."""
    next_tokens = np.append(sequences.tokens[1:], IGNORE_INDEX)[: len(sequences.tokens)]
    next_tokens[sequences.offsets[1:][sequences.lengths > 0] - 1] = IGNORE_INDEX
    return next_tokens
