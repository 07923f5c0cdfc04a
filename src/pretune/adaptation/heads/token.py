"""Heads with an output per token: tagging, and spans of an answer.

**Tagging** (named entities, parts of speech; Devlin et al., 2019, section 5.3): a linear layer on every token's state;
the first token of a word carries the word's label, the others have none. For an encoder-decoder the decoder's states
are used, with the text on both sides (Lewis et al., 2020).

    tokens   [CLS] John  lives in  Par  ##is  [SEP]
    targets  -     B-PER O     O   B-LOC -    -

**Extractive question answering** (Devlin et al., 2019, sections 4.2 and 4.3): a start and an end score for every token.
No answer is the span of the first token ([CLS]). Targets are set at the tokens: `START` at the first of the answer,
`END` at the last, their sum if it has one token.

    tokens   [CLS] who sang ? [SEP] it  was Nina Simone . [SEP]
    targets  -     -   -    - -     -   -   1    2      - -
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Self

import torch
from torch import Tensor, nn

from pretune.adaptation.heads.base import (
    HeadedModel,
    build_token_head,
    check_classes,
    count_labels,
    resolve_transform,
    segment_log_softmax,
    segment_logsumexp,
)
from pretune.adaptation.heads.sequence import cross_entropy
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.config import Fraction, NewField, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss, Targets
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.distillation import compute_soft_loss
from pretune.nn.heads import Transform


@spec
class Tagging:
    """One of several tags per token; cross-entropy at the batch's targets."""

    classes: Positive[int]
    labels: tuple[str, ...] = ()  # names of the tags, in order
    dropout: Fraction = 0.1
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of the last states
    transform: Annotated[Transform | None, NewField()] = None  # before the classifier; None: as in the family's paper

    def __post_init__(self) -> None:
        check_classes(self.classes, self.labels)

    def resolve(self, spec: Model) -> Self:
        return self if self.transform else replace(self, transform=resolve_transform(spec))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        if self.scalar_mix is not None:
            return self.scalar_mix.build(model, self.classes, tagging=True, seed=seed)
        return build_token_head(model, self.classes, self.dropout, seed, self.transform)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": count_labels(get_targets(batch).labels)}

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        targets = get_targets(batch)
        states = model.states(batch)
        if self.scalar_mix is not None:
            return cross_entropy(model.head(states, batch).index_select(0, targets.index), targets.labels)
        return cross_entropy(model.head(states.index_select(0, targets.index)), targets.labels)

    def soft_loss(self, logits: Tensor, teacher_logits: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the summed loss against the logits of a teacher, softened by the temperature."""
        targets = get_targets(batch)
        student, teacher = (part.index_select(0, targets.index) for part in (logits, teacher_logits))
        return compute_soft_loss(student, teacher, temperature).where(targets.labels != IGNORE_INDEX, 0.0).sum()


def get_targets(batch: Batch) -> Targets:
    """Return the positions and labels of the tokens that have a label."""
    if batch.targets is None:
        raise UsageError("this head needs labels of tokens, but the batch has no targets")
    return batch.targets


START, END = 1, 2


@spec
class Span:
    """Start and end of an answer among the tokens of a sequence; cross-entropy over its positions."""

    dropout: Fraction = 0.0
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of the last states
    transform: Annotated[Transform | None, NewField()] = None  # before the classifier; None: as in the family's paper

    def resolve(self, spec: Model) -> Self:
        return self if self.transform else replace(self, transform=resolve_transform(spec))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        if self.scalar_mix is not None:
            return self.scalar_mix.build(model, 2, tagging=True, seed=seed)
        return build_token_head(model, 2, self.dropout, seed, self.transform)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": _has_flag(get_targets(batch).labels, START).sum()}

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        """Return the mean of start and end loss, summed over sequences."""
        targets = get_targets(batch)
        logits = model.head(model.states(batch), batch).float()  # [N, 2]
        owner = torch.where(batch.sequence < 0, batch.cells, batch.sequence)
        totals = segment_logsumexp(logits, owner, batch.cells + 1)  # [C + 1, 2]
        losses = totals[owner[targets.index]] - logits[targets.index]  # [M, 2]
        is_target = torch.stack((_has_flag(targets.labels, START), _has_flag(targets.labels, END)), dim=-1)
        return Loss(sum=losses.where(is_target, 0.0).sum() / 2, count=is_target[:, 0].sum())

    def soft_loss(self, logits: Tensor, teacher_logits: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the mean of start and end loss against a teacher's softened positions, summed over sequences."""
        targets = get_targets(batch)
        owner = torch.where(batch.sequence < 0, batch.cells, batch.sequence)
        student, teacher = (
            segment_log_softmax(part.float() / temperature, owner, batch.cells + 1) for part in (logits, teacher_logits)
        )
        has_answer = torch.zeros(batch.cells + 1, device=owner.device)
        has_answer = has_answer.index_add(0, owner[targets.index], _has_flag(targets.labels, START).float())
        losses = (teacher.exp() * (teacher - student)).sum(-1) / 2  # [N]
        return temperature**2 * losses.where((batch.sequence >= 0) & (has_answer[owner] > 0), 0.0).sum()


def _has_flag(labels: Tensor, flag: int) -> Tensor:
    return (labels > 0) & (labels & flag > 0)
