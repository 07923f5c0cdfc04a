"""Heads with one output row per sequence: classification, multi-label classification, regression, multiple choice.

**Classification** of a sequence or a pair is one linear layer on the pooled state of the family's paper: Radford et al.
(2018) read the last token, Devlin et al. (2019) [CLS] through the pooler, Liu et al. (2019) <s> through a new dense
layer, Lewis et al. (2020) the decoder's last state with the text on both sides. A pair is one sequence, joined by the
tokenizer's template.

    [CLS] a fine film [SEP]  ->  state of [CLS]  ->  dense, tanh  ->  0.1 negative, 2.3 positive

**Multi-label classification** has a sigmoid per label instead of a softmax (`problem_type` of `transformers`:
"multi_label_classification"): an independent probability for each label. The labels of a sequence are a row of 0 and 1
`[C, K]`; -100 means none.

    [CLS] long but funny [SEP]  ->  2.1 humour, 1.4 pace, -3.0 music

**Regression** has one output, such as the similarity of two sentences (STS-B in Devlin et al., 2019). Labels are
floats; -100 means none.

    [CLS] a dog runs [SEP] a dog is running [SEP]  ->  4.6

**Multiple choice** among continuations, answers or endings is a score for each option, and a softmax over them
(Radford et al., 2018, section 3.3; Devlin et al., 2019, section 4.4). Every option is a sequence with the context; the
options of one question form a group: consecutive sequences in one row. The label of a group's first sequence is the
number of the correct option, that of the others `SAME_GROUP`.

    sequences  context + first   context + second   context + third
    labels     1                 -1                 -1
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.adaptation.heads.base import (
    HeadedModel,
    build_sequence_head,
    check_classes,
    count_labels,
    get_labels,
    resolve_pooling,
    segment_log_softmax,
    segment_logsumexp,
)
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.config import Fraction, NonNegative, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.sequences import Ints
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.distillation import compute_soft_binary_loss, compute_soft_loss
from pretune.nn.heads import PoolingConfig


@spec
class LabelHead:
    """Settings and module of the heads with an output per label."""

    classes: Positive[int]
    labels: tuple[str, ...] = ()  # names of the classes, in order
    pooling: PoolingConfig | None = None  # None: as in the family's paper
    dropout: Fraction = 0.1
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of `pooling`

    def __post_init__(self) -> None:
        check_classes(self.classes, self.labels)

    def resolve(self, spec: Model) -> Self:
        return self if self.pooling else replace(self, pooling=resolve_pooling(spec))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        return build_sequence_head(model, self, self.classes, seed)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": count_labels(get_labels(batch))}


@spec
class Classification(LabelHead):
    """One of several classes per sequence; cross-entropy."""

    lm_loss_weight: NonNegative[float] = 0.0  # weight of the auxiliary language modeling loss; 0.5 in GPT's paper

    def __post_init__(self) -> None:
        check_classes(self.classes, self.labels)
        if self.scalar_mix is not None and self.lm_loss_weight:
            raise UsageError(
                "a scalar mix freezes the model, so there is no language modeling loss; set lm_loss_weight to 0"
            )

    def resolve(self, spec: Model) -> Self:
        if self.lm_loss_weight and spec.head is None:
            raise UsageError("a language modeling loss needs a model with a vocabulary head; set lm_loss_weight to 0")
        return LabelHead.resolve(self, spec)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        counts = {"loss": count_labels(get_labels(batch))}
        if self.lm_loss_weight:
            counts["language"] = count_labels(_get_targets(batch))
        return counts

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        labels, states = get_labels(batch), model.states(batch)
        task_loss = cross_entropy(model.head(states, batch), labels)
        if not self.lm_loss_weight:
            return task_loss
        lm_loss = replace(model.model.loss(states, batch), weight=self.lm_loss_weight)
        return Loss.from_parts({"loss": task_loss, "language": lm_loss})

    def soft_loss(self, logits: Tensor, teacher_logits: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the summed loss against the logits of a teacher, softened by the temperature."""
        losses = compute_soft_loss(logits, teacher_logits, temperature)
        return losses.where(get_labels(batch) != IGNORE_INDEX, 0.0).sum()


def cross_entropy(logits: Tensor, labels: Tensor) -> Loss:
    """Return the loss summed over the rows `[R, K]` that have a label; without gradients also the correct ones."""
    total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    correct = None if torch.is_grad_enabled() else (logits.argmax(-1) == labels).sum()
    return Loss(sum=total, count=count_labels(labels), correct=correct)


def _get_targets(batch: Batch) -> Tensor:
    if batch.targets is None:
        raise UsageError("a language modeling loss needs a batch with targets; set lm_loss_weight to 0")
    return batch.targets.labels


@spec
class MultiLabel(LabelHead):
    """Any number of labels per sequence; binary cross-entropy for each."""

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        """Return the loss summed over labels and sequences; the count is that of all decisions."""
        labels = get_labels(batch)
        logits = model.head(model.states(batch), batch).float()
        losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return Loss(sum=losses.where(labels != IGNORE_INDEX, 0.0).sum(), count=count_labels(labels))

    def soft_loss(self, logits: Tensor, teacher_logits: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the summed loss against the logits of a teacher, softened by the temperature."""
        losses = compute_soft_binary_loss(logits, teacher_logits, temperature)
        return losses.where(get_labels(batch) != IGNORE_INDEX, 0.0).sum()


@spec
class ScoreHead:
    """Settings and module of the heads with one number per sequence."""

    is_choice: ClassVar[bool] = False

    pooling: PoolingConfig | None = None  # None: as in the family's paper
    dropout: Fraction = 0.1
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of `pooling`

    def resolve(self, spec: Model) -> Self:
        return self if self.pooling else replace(self, pooling=resolve_pooling(spec, is_choice=self.is_choice))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        return build_sequence_head(model, self, 1, seed)


@spec
class Regression(ScoreHead):
    """One number per sequence; squared error."""

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": count_labels(get_labels(batch))}

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        labels = get_labels(batch)
        error = model.head(model.states(batch), batch).squeeze(-1).float() - labels
        return Loss(sum=error.where(labels != IGNORE_INDEX, 0.0).square().sum(), count=count_labels(labels))

    def soft_loss(self, logits: Tensor, teacher_logits: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the summed squared difference from a teacher's scores; the temperature has no meaning."""
        errors = (logits.float() - teacher_logits.float()).square().squeeze(-1)
        return errors.where(get_labels(batch) != IGNORE_INDEX, 0.0).sum()


SAME_GROUP = -1
"""Label of a sequence that belongs to the same group as the previous one."""


@spec
class Choice(ScoreHead):
    """A score per sequence; cross-entropy over the sequences of a group."""

    is_choice: ClassVar[bool] = True

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": (get_labels(batch) >= 0).sum()}

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        labels = get_labels(batch)
        scores = model.head(model.states(batch), batch).squeeze(-1).float()  # [C]
        is_first = labels >= 0
        group = _number_groups(labels)
        totals = segment_logsumexp(scores[:, None], group, batch.cells + 1).squeeze(-1)
        cells = torch.arange(batch.cells, device=labels.device)
        correct_scores = scores[(cells + labels.clamp(min=0)).clamp(max=batch.cells - 1)]
        total = (totals[group] - correct_scores).where(is_first, 0.0).sum()
        return Loss(sum=total, count=is_first.sum(), correct=_count_correct(scores, correct_scores, group, is_first))

    def soft_loss(self, logits: Tensor, teacher_logits: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the summed loss against a teacher's softened choice among the sequences of each group."""
        labels = get_labels(batch)
        group = _number_groups(labels)
        student, teacher = (
            segment_log_softmax(part.float() / temperature, group, batch.cells + 1) for part in (logits, teacher_logits)
        )
        losses = (teacher.exp() * (teacher - student)).squeeze(-1)  # [C]
        return temperature**2 * losses.where(group > 0, 0.0).sum()


def _number_groups(labels: Tensor) -> Tensor:
    """Return the group of each cell `[C]`, from 1; 0 for cells in no group."""
    return torch.where(labels == IGNORE_INDEX, 0, (labels >= 0).cumsum(0))


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
