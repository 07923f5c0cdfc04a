"""Losses of pairs of answers, of which one is chosen and one rejected, and the objective of a decoder on them.

Each loss has a reward, a number for an answer, and compares the rewards of a pair. With r = log p(answer | prompt), its
mean m per token, and r0 of the reference, the model before training:

    dpo           beta (r - r0)             -log sigmoid(chosen - rejected)                      Rafailov et al., 2023
    ipo           beta (r - r0) / tokens    ((chosen - rejected) / beta - 1 / (2 beta))^2        Azar et al., 2024
    kto           beta (r - r0)             sigmoid(-chosen) + sigmoid(rejected)                 Ethayarajh et al., 2024
    simpo         beta m                    -log sigmoid(chosen - rejected - gamma)              Meng et al., 2024
    orpo          beta m                    -beta log sigmoid of the difference of log-odds      Hong et al., 2024
    reward_model  score of a head           -log sigmoid(chosen - rejected)                      Bradley and Terry, 1952

KTO's reference point is 0, so that the loss of a pair does not depend on others (APO-zero, D'Oosterlinck et al., 2024).
The loss of the chosen answers may be added to each (`nll_weight`), and is a part of ORPO.

Legend: M target slots, C cells.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.adaptation.answer_logprobs import compute_answer_logprobs, count_targets
from pretune.adaptation.heads.base import HeadedModel, get_labels
from pretune.core.config import Ge, NonNegative, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss

MAX_MEAN_LOGPROB = -1e-6
"""Upper bound of log p in log-odds, which are infinite at 0."""


@spec
class PreferenceLoss:
    """Settings of all losses, and the reward of most."""

    needs_reference: ClassVar[bool] = True

    beta: Positive[float] = 0.1
    nll_weight: NonNegative[float] = 0.0  # of the loss per token of the chosen answers

    def reward(self, logprob: Tensor, tokens: Tensor, reference: Tensor) -> Tensor:
        """Return the reward of each answer, from its log-probability, its tokens, and its reference."""
        return self.beta * (logprob - reference)

    def compute(self, chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
        """Return the loss of each pair from the rewards of its answers."""
        return -F.logsigmoid(chosen_rewards - rejected_rewards)


@spec(kind="dpo")
class DPO(PreferenceLoss):
    """Direct preference optimization."""


@spec(kind="ipo")
class IPO(PreferenceLoss):
    """Identity preference optimization, of mean log-probabilities: a margin of 1 / (2 beta), not more."""

    def reward(self, logprob: Tensor, tokens: Tensor, reference: Tensor) -> Tensor:
        return self.beta * (logprob - reference) / tokens

    def compute(self, chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
        return ((chosen_rewards - rejected_rewards) / self.beta - 1 / (2 * self.beta)).square()


@spec(kind="kto")
class KTO(PreferenceLoss):
    """Kahneman-Tversky optimization with a reference point of 0."""

    def compute(self, chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
        return torch.sigmoid(-chosen_rewards) + torch.sigmoid(rejected_rewards)


@spec(kind="simpo")
class SimPO(PreferenceLoss):
    """Simple preference optimization: mean log-probabilities, no reference."""

    needs_reference: ClassVar[bool] = False

    beta: Positive[float] = 2.0
    gamma: Annotated[float, Ge(0)] = 0.5  # margin between the rewards

    def reward(self, logprob: Tensor, tokens: Tensor, reference: Tensor) -> Tensor:
        return self.beta * logprob / tokens

    def compute(self, chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
        return -F.logsigmoid(chosen_rewards - rejected_rewards - self.gamma)


@spec(kind="orpo")
class ORPO(PreferenceLoss):
    """Odds ratio preference optimization: the loss of the chosen answers and an odds ratio, no reference."""

    needs_reference: ClassVar[bool] = False

    nll_weight: NonNegative[float] = 1.0

    def reward(self, logprob: Tensor, tokens: Tensor, reference: Tensor) -> Tensor:
        return self.beta * logprob / tokens

    def compute(self, chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
        chosen_odds, rejected_odds = (
            _compute_log_odds(part / self.beta) for part in (chosen_rewards, rejected_rewards)
        )
        return -self.beta * F.logsigmoid(chosen_odds - rejected_odds)


def _compute_log_odds(logprob: Tensor) -> Tensor:
    return logprob - torch.log1p(-logprob.clamp(max=MAX_MEAN_LOGPROB).exp())


@spec(kind="reward_model")
class RewardModel:
    """Reward model: a score for each answer by a new head, of any model."""


AnyPreferenceLoss = DPO | IPO | KTO | SimPO | ORPO | RewardModel


@dataclass(frozen=True, slots=True)
class PreferenceObjective:
    """Objective of a decoder on pairs: cells with the label 0 are chosen answers, each before its rejected one.

    Teacher logits of a batch are the log-probabilities of the reference.
    """

    pair_loss: PreferenceLoss

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        is_chosen = get_labels(batch) == 0
        counts = {"loss": is_chosen.sum()}
        return counts | ({"answers": (count_targets(batch) * is_chosen).sum()} if self.pair_loss.nll_weight else {})

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        answers, is_chosen = compute_answer_logprobs(model, batch), get_labels(batch) == 0
        if batch.teacher_logits is not None:
            reference = batch.teacher_logits[:, 0]
        elif self.pair_loss.needs_reference:
            raise UsageError("this loss needs the log-probabilities of a reference, which the batch lacks")
        else:
            reference = torch.zeros_like(answers.sums)
        rewards = self.pair_loss.reward(answers.sums, answers.counts.clamp(min=1), reference)
        losses = self.pair_loss.compute(rewards, rewards.roll(-1))
        correct = None if torch.is_grad_enabled() else ((rewards > rewards.roll(-1)) & is_chosen).sum()
        total = Loss(sum=losses.where(is_chosen, 0.0).sum(), count=is_chosen.sum(), correct=correct)
        if not self.pair_loss.nll_weight:
            return total
        nll = -answers.sums.where(is_chosen, 0.0).sum()
        count = (answers.counts * is_chosen).sum()
        return Loss.from_parts({"loss": total, "answers": Loss(sum=nll, count=count, weight=self.pair_loss.nll_weight)})
