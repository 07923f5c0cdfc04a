"""Multiple choice among continuations, answers or endings: a score for each option, and a softmax over them.

Papers: Radford et al. (2018), section 3.3; Devlin et al. (2019), section 4.4. Every option is a sequence with the
context; the options of one question form a group: consecutive sequences in one row.
The label of a group's first sequence is the number of the correct option, that of the others `SAME_GROUP`. See also:
`classification`.

    sequences  context + first   context + second   context + third
    labels     1                 -1                 -1
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from pretune.adaptation.heads.base import (
    HeadedModel,
    build_sequence_head,
    get_labels,
    resolve_pooling,
    segment_logsumexp,
)
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.config import Fraction, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.sequences import Ints
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.heads import PoolingConfig

SAME_GROUP = -1
"""Label of a sequence that belongs to the same group as the previous one."""


@spec
class Choice:
    """A score per sequence; cross-entropy over the sequences of a group."""

    pooling: PoolingConfig | None = None  # None: as in the family's paper
    dropout: Fraction = 0.1
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of `pooling`

    def resolve(self, spec: Model) -> Self:
        return self if self.pooling else replace(self, pooling=resolve_pooling(spec, is_choice=True))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        if self.scalar_mix is not None:
            return self.scalar_mix.build(model, 1, tagging=False, seed=seed)
        pooling = self.pooling or resolve_pooling(model.spec, is_choice=True)
        return build_sequence_head(model, pooling, 1, self.dropout, seed)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": (get_labels(batch) >= 0).sum()}

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        labels = get_labels(batch)
        scores = model.head(model.states(batch), batch).squeeze(-1).float()  # [C]
        is_first = labels >= 0
        group = torch.where(labels == IGNORE_INDEX, 0, is_first.cumsum(0))  # [C] from 1; 0 for cells in no group
        totals = segment_logsumexp(scores[:, None], group, batch.cells + 1).squeeze(-1)
        cells = torch.arange(batch.cells, device=labels.device)
        correct_scores = scores[(cells + labels.clamp(min=0)).clamp(max=batch.cells - 1)]
        total = (totals[group] - correct_scores).where(is_first, 0.0).sum()
        return Loss(sum=total, count=is_first.sum(), correct=_count_correct(scores, correct_scores, group, is_first))


def _count_correct(scores: Tensor, correct_scores: Tensor, group: Tensor, is_first: Tensor) -> Tensor | None:
    """Return the number of groups whose correct option has the highest score; None during training."""
    if torch.is_grad_enabled():
        return None
    max_scores = scores.new_full((len(scores) + 1,), -torch.inf)
    max_scores = max_scores.scatter_reduce(0, group, scores, "amax")
    return ((correct_scores == max_scores[group]) & is_first).sum()


def build_group_labels(sizes: Ints, correct: Ints) -> Ints:
    """Return the labels of all sequences, from the size of each group and its correct option.

    >>> build_group_labels(np.array([3, 2]), np.array([1, 0])).tolist()
    [1, -1, -1, 0, -1]
    """
    if (sizes < 1).any() or (correct < 0).any() or (correct >= sizes).any():
        raise UsageError("every group needs at least one sequence, and its label must be the index of one of them")
    labels = np.full(int(sizes.sum()), SAME_GROUP, dtype=np.int64)
    labels[np.cumsum(sizes) - sizes] = correct
    return labels
