"""Causal language modelling: predict the next token at every position.

Paper: Radford et al. (2018); the idea is as old as Shannon (1951). Input: documents or packed blocks.
Siblings: `prefix` has bidirectional attention over the first part; `bidirectional` adds a right-to-left stack.

AWD-LSTM adds penalties of the last layer's output (Merity et al., 2017, "Revisiting activation regularization"): of its
squared values after dropout, and of the squared differences of successive tokens before it; both are means over tokens
and units.

    tokens   The  cat  sat  down
    targets  cat  sat  down -
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Self

import numpy as np
from torch import Tensor

from pretune.core.config import Ge, NewField, spec
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.sampling import Counters
from pretune.data.sequences import Ints, Sequences
from pretune.objectives.base import (
    BaseCorruption,
    ModelShape,
    Objective,
    PretrainingModel,
    Vocabulary,
    count_vocabulary_targets,
)


@spec(kind="causal")
class CausalLM(Objective):
    """Next token at every position (GPT)."""

    activation_penalty: Annotated[float, Ge(0), NewField()] = 0.0  # AWD-LSTM: 2
    temporal_penalty: Annotated[float, Ge(0), NewField()] = 0.0  # AWD-LSTM: 1

    shapes = ("decoder",)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "CausalCorruption":
        return CausalCorruption()

    def to_evaluation(self) -> Self:
        """Return the form without penalties."""
        return type(self)()

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        """Count the targets, and the tokens and pairs of successive tokens that have a penalty."""
        counts = {"loss": count_vocabulary_targets(batch)}
        if self.activation_penalty:
            counts["activation"] = (batch.sequence >= 0).sum()
        if self.temporal_penalty:
            counts["temporal"] = (batch.positions > 0).sum()
        return counts

    def loss(self, model: PretrainingModel, batch: Batch) -> Loss:
        """Compute the loss of the next tokens, and the penalties as parts with their weights."""
        if not self.activation_penalty and not self.temporal_penalty:
            return self.loss_from_states(model, model.states(batch), batch)
        states, output = model.compute_output(batch)
        counts, parts = self.counts(batch), {"loss": model.loss(states, batch)}
        if self.activation_penalty:
            total = _sum_squares(states, batch.sequence >= 0)
            parts["activation"] = Loss(sum=total, count=counts["activation"], weight=self.activation_penalty)
        if self.temporal_penalty:
            total = _sum_squares(output - output.roll(1, dims=0), batch.positions > 0)
            parts["temporal"] = Loss(sum=total, count=counts["temporal"], weight=self.temporal_penalty)
        return Loss.from_parts(parts)


def _sum_squares(states: Tensor, is_counted: Tensor) -> Tensor:
    """Return the sum over the counted tokens of the mean square of their units, in fp32."""
    return states.float().pow(2).mean(-1).masked_fill(~is_counted, 0.0).sum()


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
