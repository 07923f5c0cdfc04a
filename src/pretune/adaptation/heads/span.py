"""Extractive question answering: a start and an end score for every token.

Paper: Devlin et al. (2019), sections 4.2 and 4.3. No answer is the span of the first token ([CLS]). Targets are set at
the tokens: `START` at the first of the answer, `END` at the last, their sum if it has one token. See also: `tagging`.

    tokens   [CLS] who sang ? [SEP] it  was Nina Simone . [SEP]
    targets  -     -   -    - -     -   -   1    2      - -
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from pretune.adaptation.heads.base import HeadedModel, build_token_head
from pretune.adaptation.heads.segment_sum import segment_logsumexp
from pretune.adaptation.heads.tagging import get_targets
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.config import Fraction, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss
from pretune.models.model import LanguageModel
from pretune.models.spec import Model

START, END = 1, 2


@spec
class Span:
    """Start and end of an answer among the tokens of a sequence; cross-entropy over its positions."""

    dropout: Fraction = 0.0
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of the last states

    def resolve(self, spec: Model) -> Self:
        return self

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        if self.scalar_mix is not None:
            return self.scalar_mix.build(model, 2, tagging=True, seed=seed)
        return build_token_head(model, 2, self.dropout, seed)

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


def _has_flag(labels: Tensor, flag: int) -> Tensor:
    return (labels > 0) & (labels & flag > 0)


@dataclass(frozen=True, slots=True)
class SpanAnswer:
    """The best span of a sequence: first and last token, score, and the score of no answer minus that score."""

    start: int
    end: int
    score: float
    null_score_diff: float


def find_best_span(logits: Tensor, is_allowed: Tensor, *, max_tokens: int = 30) -> SpanAnswer:
    """Return the best span of at most `max_tokens` allowed tokens, from the logits `[n, 2]` of one sequence.

    Predict no answer if `null_score_diff` is above a threshold, which is tuned on held-out data (0 is a fair default).
    """
    if max_tokens < 1 or not bool(is_allowed.any()):
        raise UsageError(f"max_tokens must be >= 1 with at least one allowed token, got {max_tokens}")
    scores = logits.detach().float().cpu()
    outside = ~is_allowed.cpu()
    starts, ends = (scores[:, side].masked_fill(outside, -torch.inf) for side in (0, 1))
    sums = starts[:, None] + ends[None]  # [n, n]
    sums = sums.masked_fill(~torch.ones_like(sums, dtype=torch.bool).triu().tril(max_tokens - 1), -torch.inf)
    start, end = divmod(int(sums.argmax()), len(scores))
    score = float(sums[start, end])
    return SpanAnswer(start, end, score, float(scores[0].sum()) - score)
