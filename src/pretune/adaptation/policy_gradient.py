"""Reinforcement learning with rewards of whole answers: GRPO (Shao et al., 2024, "DeepSeekMath").

Every prompt gets a group of sampled answers. The advantage of an answer is its reward relative to the group's, so that
no value network is needed; the loss raises the log-probabilities of the tokens of better answers:

    rewards of a group   1  0  0  1          mean 0.5, standard deviation 0.5
    advantages           1 -1 -1  1          not divided (Liu et al., 2025, "Dr. GRPO"): 0.5 -0.5 -0.5 0.5
    loss                 mean over all tokens of all answers of -advantage * log p(token)

Each sampling is used for one step, with the weights that it was sampled with: the ratio of probabilities is 1, so
there is nothing to clip. A group of equal rewards has no advantages: its answers are left out of the pass, but their
tokens count in the mean. With `kl_weight` none is, and the divergence from the model before training is added,
estimated from the log-probabilities of the sampled tokens (Schulman, 2020): exp(d) - d - 1 for their difference d.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.answer_logprobs import count_targets, find_target_cells
from pretune.adaptation.heads.token import get_targets
from pretune.core.config import Ge, NonNegative, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss
from pretune.nn.loss import linear_logprobs

FACTS = ("advantage", "reward", "no_signal", "length")
"""Columns of the labels of a batch of answers; `no_signal` is 1 where all answers of a group have the same reward, and
`length` counts all tokens of an answer, also of one that is left out."""


@spec(has_kind=False)
class GRPO:
    """Group relative policy optimization: sampled answers for each prompt, and their advantages."""

    samples: Annotated[int, Ge(2)] = 8  # answers for each prompt
    temperature: Positive[float] = 1.0  # of the logits, in sampling and in the loss
    divide: bool = True  # advantages by the standard deviation of the group; false: Dr. GRPO
    kl_weight: NonNegative[float] = 0.0  # of the divergence from the model before training


def compute_facts(rewards: NDArray[np.float64], *, divide: bool) -> NDArray[np.float32]:
    """Return the `FACTS` but for the length `[P n, 3]` of n answers to each of P prompts, given their rewards `[P, n]`.

    >>> compute_facts(np.array([[1.0, 0.0], [2.0, 2.0]]), divide=True).tolist()
    [[1.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 2.0, 1.0], [0.0, 2.0, 1.0]]
    """
    has_signal = rewards.max(1, keepdims=True) > rewards.min(1, keepdims=True)
    advantages = np.where(has_signal, rewards - rewards.mean(1, keepdims=True), 0.0)
    if divide:
        advantages = advantages / np.where(has_signal, rewards.std(1, keepdims=True), 1.0)
    facts = np.stack(np.broadcast_arrays(advantages, rewards, ~has_signal), axis=-1)
    return facts.reshape(-1, len(FACTS) - 1).astype(np.float32)


def read_facts(batch: Batch) -> Tensor:
    """Return the `FACTS` of every cell `[C, 4]`; 0 for filler, and for prompts that answers share."""
    if batch.labels is None:
        raise UsageError("a policy gradient needs a batch of answers with advantages")
    is_answer = batch.mark_sequences() & (batch.labels[:, FACTS.index("length")] > 0)
    return batch.labels.where(is_answer[:, None], 0.0)


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """Objective of sampled answers, whose labels are `FACTS`.

    The loss is minus the mean reward, plus any divergence; its gradient is the policy gradient. For the log: the
    entropy of the answers that are not left out, the length of all, and the share of groups without a signal.
    """

    settings: GRPO
    initial_weights: Sequence[tuple[Parameter, Tensor]] = ()  # trained parameters and their values before training

    @classmethod
    def from_model(cls, settings: GRPO, model: ModelWithHead) -> Self:
        """Return the objective of a model before its training."""
        trained_parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        pairs = [(parameter, parameter.detach().clone()) for parameter in trained_parameters]
        return cls(settings, pairs if settings.kl_weight else ())

    @property
    def forward_share(self) -> float:
        """FLOPs of sampling, and of the model before training, relative to a full training step."""
        return (2 if self.settings.kl_weight else 1) / 3

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        targets, length = count_targets(batch).sum(), read_facts(batch)[:, FACTS.index("length")]
        by_target = dict.fromkeys(("entropy", *(("kl",) if self.settings.kl_weight else ())), targets)
        counts = {"policy": length.sum().long()} | by_target
        return counts | dict.fromkeys(("reward", "no_signal", "length"), (length > 0).sum())

    def loss(self, model: ModelWithHead, batch: Batch) -> Loss:
        counts, facts = self.counts(batch), read_facts(batch)
        if self.settings.kl_weight:
            with torch.no_grad(), self.restore_initial_weights():
                reference = self.compute_logprobs(model, batch)
        logprobs = self.compute_logprobs(model, batch)
        policy = -(facts[find_target_cells(batch), 0] * logprobs).sum()
        reward, no_signal, length = facts[:, 1:].sum(0)
        sums = {
            "policy": (policy - policy.detach(), 1.0),  # a gradient without a value
            "reward": (reward, -1.0),
            "entropy": (-logprobs.detach().sum(), 0.0),
            "no_signal": (no_signal, 0.0),
            "length": (length, 0.0),
        }
        if self.settings.kl_weight:
            difference = reference - logprobs
            sums["kl"] = (difference.exp() - difference - 1).sum(), self.settings.kl_weight
        return Loss.from_parts(
            {name: Loss(sum=total, count=counts[name], weight=weight) for name, (total, weight) in sums.items()}
        )

    def compute_logprobs(self, model: ModelWithHead, batch: Batch) -> Tensor:
        """Return the log-probability of each target `[M]` at the temperature of sampling."""
        targets, temperature = get_targets(batch), self.settings.temperature
        rows, weight, bias = model.model.get_logit_factors(model.states(batch), targets.index)
        if not len(rows):  # a part without prompts still needs a graph
            return rows.sum(-1)
        return linear_logprobs(rows / temperature, weight, None if bias is None else bias / temperature, targets.labels)

    @contextmanager
    def restore_initial_weights(self) -> Iterator[None]:
        """Exchange the trained parameters for their values before training inside the block."""
        present_values = [parameter.data for parameter, _ in self.initial_weights]
        try:
            for parameter, value in self.initial_weights:
                parameter.data = value
            yield
        finally:
            for (parameter, _), value in zip(self.initial_weights, present_values, strict=True):
                parameter.data = value
