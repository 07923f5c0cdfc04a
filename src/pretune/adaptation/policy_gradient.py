"""Reinforcement learning with rewards of whole answers: GRPO (Shao et al., 2024, "DeepSeekMath").

Every prompt gets a group of sampled answers. The advantage of an answer is its reward relative to the group's, so that
no value network is needed; the loss raises the log-probabilities of the tokens of better answers:

    rewards of a group   1  0  0  1          mean 0.5, standard deviation 0.5
    advantages           1 -1 -1  1          not divided (Liu et al., 2025, "Dr. GRPO"): 0.5 -0.5 -0.5 0.5
    loss                 mean over all tokens of all answers of -advantage * log p(token)

Each sampling is used for one step, with the weights that it was sampled with: the ratio of probabilities is 1, so
there is nothing to clip.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.answer_logprobs import compute_answer_logprobs, count_targets
from pretune.core.config import Ge, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss

FACTS = ("advantage", "reward", "no_signal")
"""Columns of the labels of a batch of answers; `no_signal` is 1 where all answers of a group have the same reward."""


@spec(has_kind=False)
class GRPO:
    """Group relative policy optimization: sampled answers for each prompt, and their advantages."""

    samples: Annotated[int, Ge(2)] = 8  # answers for each prompt
    divide: bool = True  # advantages by the standard deviation of the group; false: Dr. GRPO


def compute_facts(rewards: NDArray[np.float64], *, divide: bool) -> NDArray[np.float32]:
    """Return the `FACTS` `[P n, 3]` of n answers to each of P prompts, given their rewards `[P, n]`.

    >>> compute_facts(np.array([[1.0, 0.0], [2.0, 2.0]]), divide=True).tolist()
    [[1.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 2.0, 1.0], [0.0, 2.0, 1.0]]
    """
    has_signal = rewards.max(1, keepdims=True) > rewards.min(1, keepdims=True)
    advantages = np.where(has_signal, rewards - rewards.mean(1, keepdims=True), 0.0)
    if divide:
        advantages = advantages / np.where(has_signal, rewards.std(1, keepdims=True), 1.0)
    facts = np.stack(np.broadcast_arrays(advantages, rewards, ~has_signal), axis=-1)
    return facts.reshape(-1, len(FACTS)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """Objective of sampled answers, whose labels are `FACTS`.

    The loss is minus the mean reward, and its gradient the policy gradient. For the log: the entropy, the length of the
    answers, and the share of groups without a signal.
    """

    settings: GRPO

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        tokens, answers = count_targets(batch).sum(), batch.mark_sequences().sum()
        by_token, by_answer = ("policy", "entropy"), ("reward", "no_signal", "length")
        return dict.fromkeys(by_token, tokens) | dict.fromkeys(by_answer, answers)

    def loss(self, model: ModelWithHead, batch: Batch) -> Loss:
        if batch.labels is None:
            raise UsageError("a policy gradient needs a batch of answers with advantages")
        answers, counts = compute_answer_logprobs(model, batch), self.counts(batch)
        facts = batch.labels.where(batch.mark_sequences()[:, None], 0.0)  # [C, 3]
        policy = -(facts[answers.cells, 0] * answers.tokens).sum()
        reward, no_signal = facts[:, 1:].sum(0)
        sums = {
            "policy": (policy - policy.detach(), 1.0),  # a gradient without a value
            "reward": (reward, -1.0),
            "entropy": (-answers.tokens.detach().sum(), 0.0),
            "no_signal": (no_signal, 0.0),
            "length": (counts["policy"].float(), 0.0),
        }
        return Loss.from_parts(
            {name: Loss(sum=total, count=counts[name], weight=weight) for name, (total, weight) in sums.items()}
        )
