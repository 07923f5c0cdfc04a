"""Which of several continuations, answers or endings fits: a score for each, and a softmax over them.

Papers: Radford et al. (2018), section 3.3; Devlin et al. (2019), section 4.4. Every option is a sequence with the
context; a group are the options of one question, one after the other and in one row (`repeat_rows` gives their rows). The
label of its first sequence is the number of the right one, that of the others `SAME_GROUP`. Siblings: `classification`.

    sequences  context + first   context + second   context + third
    labels     1                 -1                 -1
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from pretune.adaptation.heads.base import HeadedModel, build_sequence_head, get_labels, resolve_pooling
from pretune.adaptation.heads.segment_sum import segment_logsumexp
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.ragged import Ints
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.pooling import Reading

SAME_GROUP = -1
"""The label of a sequence that belongs to the group of the one before it."""


@spec
class Choice:
    """One score for every sequence, by cross-entropy over the sequences of a group."""

    reading: Reading | None = None  # None: as the family's paper does
    dropout: float = 0.1
    mix: Mixing | None = None  # all layers of a frozen model are read, in place of `reading`

    def resolve(self, spec: Model) -> Self:
        return self if self.reading else replace(self, reading=resolve_pooling(spec, is_choice=True))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        if self.mix is not None:
            return self.mix.build(model, 1, tagging=False, seed=seed)
        reading = self.reading or resolve_pooling(model.spec, is_choice=True)
        return build_sequence_head(model, reading, 1, self.dropout, seed)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": (get_labels(batch) >= 0).sum()}

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        labels = get_labels(batch)
        scores = model.head(model.states(batch), batch).squeeze(-1).float()  # [C]
        first = labels >= 0
        group = torch.where(labels == IGNORE_INDEX, 0, first.cumsum(0))  # [C] from 1; 0 for what is in none
        totals = segment_logsumexp(scores[:, None], group, batch.cells + 1).squeeze(-1)
        here = torch.arange(batch.cells, device=labels.device)
        right = scores[(here + labels.clamp(min=0)).clamp(max=batch.cells - 1)]
        total = (totals[group] - right).where(first, 0.0).sum()
        return Loss(sum=total, count=first.sum(), correct=_count_correct(scores, right, group, first))


def _count_correct(scores: Tensor, correct_scores: Tensor, group: Tensor, is_first: Tensor) -> Tensor | None:
    """How many groups have their highest score where it should be; not asked while training."""
    if torch.is_grad_enabled():
        return None
    top = scores.new_full((len(scores) + 1,), -torch.inf)
    top = top.scatter_reduce(0, group, scores, "amax")
    return ((correct_scores == top[group]) & is_first).sum()


def repeat_rows(sizes: Ints, rows: Ints) -> Ints:
    """The row of every sequence, from the number of sequences in each group and the row it was packed in."""
    return np.repeat(rows, sizes)


def build_group_labels(sizes: Ints, correct: Ints) -> Ints:
    """The labels of all sequences of groups, from how many each has and which is the right one.

    >>> build_group_labels(np.array([3, 2]), np.array([1, 0])).tolist()
    [1, -1, -1, 0, -1]
    """
    if (sizes < 1).any() or (correct < 0).any() or (correct >= sizes).any():
        raise UsageError("every group needs a sequence, and its label is the number of one of them, from 0")
    labels = np.full(int(sizes.sum()), SAME_GROUP, dtype=np.int64)
    labels[np.cumsum(sizes) - sizes] = correct
    return labels
