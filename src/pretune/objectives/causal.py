"""Causal language modelling: predict the next token at every position; with two stacks, also the previous one.

Paper: Radford et al. (2018); the idea is as old as Shannon (1951). Input: documents or packed blocks.
Sibling: `prefix` has bidirectional attention over the first part.

AWD-LSTM adds penalties of the last layer's output (Merity et al., 2017, "Revisiting activation regularization"): of its
squared values after dropout, and of the squared differences of successive tokens before it; both are means over tokens
and units.

    tokens   The  cat  sat  down
    targets  cat  sat  down -

Bidirectional language modelling: one stack predicts the next token, another the previous one. Paper: Peters et al.
(2018), ELMo, with recurrent stacks; here two causal stacks of any kind, which share the token embedding and the head.
Each sees one side only, so nothing is masked and every token is predicted twice; the states of both are concatenated
afterwards. Sibling: `masked` sees both sides at once, but predicts 15 % of the tokens.

    tokens     The  cat  sat  down
    forward    cat  sat  down -
    backward   -    The  cat  sat        read from the right: down sat cat The
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from pretune.core.config import Ge, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss, Targets
from pretune.data.sampling import Counters
from pretune.data.sequences import Ints, Sequences
from pretune.data.stream import Corruption
from pretune.objectives.base import (
    ModelShape,
    Objective,
    PretrainingModel,
    Vocabulary,
    count_vocabulary_targets,
    require_targets,
)


@spec(kind="causal")
class CausalLM(Objective):
    """Next token at every position (GPT)."""

    activation_penalty: Annotated[float, Ge(0)] = 0.0  # AWD-LSTM: 2
    temporal_penalty: Annotated[float, Ge(0)] = 0.0  # AWD-LSTM: 1

    shapes = ("decoder",)
    allows_streams = True
    difficulty_settings = ("activation_penalty", "temporal_penalty")

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "CausalCorruption":
        return CausalCorruption()

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
class CausalCorruption(Corruption):
    """Next-token targets; the tokens stay unchanged."""

    @property
    def lookahead(self) -> int:
        return 1

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        return replace(sequences, targets=find_next_tokens(sequences))


def find_next_tokens(sequences: Sequences) -> Ints:
    """Return the next token of each [T]; IGNORE_INDEX at the end of a sequence."""
    next_tokens = np.append(sequences.tokens[1:], IGNORE_INDEX)[: len(sequences.tokens)]
    next_tokens[sequences.offsets[1:][sequences.lengths > 0] - 1] = IGNORE_INDEX
    return next_tokens


@runtime_checkable
class BidirectionalModel(Protocol):
    """Methods of a model that `bidirectional` calls."""

    @property
    def shape(self) -> ModelShape:
        """Return the shape of the model."""

    def compute_directional_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the states [N, W] of the left-to-right and of the right-to-left stack."""

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """Compute the summed loss of the vocabulary head at the batch's targets."""


@spec
class Bidirectional(Objective):
    """Next and previous token at every position, by two stacks (ELMo)."""

    shapes = ("two-way",)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> CausalCorruption:
        return CausalCorruption()

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        count = count_vocabulary_targets(batch)
        return {"forward": count, "backward": count}

    def loss(self, model: object, batch: Batch) -> Loss:
        if not isinstance(model, BidirectionalModel) or model.shape != "two-way":
            raise UsageError("bidirectional needs a model of the shape 'two-way' (two stacks)")
        forward, backward = model.compute_directional_states(batch)
        return Loss.from_parts(
            {"forward": model.loss(forward, batch), "backward": model.loss(backward, shift_targets_back(batch))}
        )


def shift_targets_back(batch: Batch) -> Batch:
    """Return the batch with the targets of the right-to-left stack: where token i predicts i + 1, i + 1 predicts i."""
    targets = require_targets(batch)
    index, spare = targets.index, targets.labels == IGNORE_INDEX
    labels = torch.where(spare, IGNORE_INDEX, batch.tokens.index_select(0, index))
    return replace(batch, targets=Targets(index=torch.where(spare, 0, index + 1), labels=labels))
