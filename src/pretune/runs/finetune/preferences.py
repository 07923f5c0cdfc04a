"""Runs on preferences: the objective, the log-probabilities of the reference, and the scores of pairs.

The reference is the model before training, with an adapter that changes nothing yet. Its log-probabilities are computed
once, for training and held-out pairs, so that no second model is kept and no step computes them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pretune.adaptation import methods
from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.preference import DPO, PreferenceObjective, RewardModel
from pretune.core.errors import UsageError
from pretune.runs.finetune.config import FinetuneConfig
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Floats, Items
from pretune.tasks.example import Example
from pretune.tasks.predict import BATCH_TOKENS, compute_logits, score_answers
from pretune.tasks.task import Task
from pretune.tasks.types import get_type


@dataclass(frozen=True, slots=True)
class PreferenceRun:
    """The objective of a run on preferences, and the log-probabilities of both answers of each example by the
    reference.
    """

    objective: PreferenceObjective
    references: dict[Example, tuple[float, float]] = field(default_factory=dict)

    def compute_references(
        self, model: ModelWithHead, encoder: TaskEncoder, examples: Sequence[Example], precision: torch.dtype | None
    ) -> None:
        """Compute the log-probabilities of examples by a model before its training."""
        missing = [example for example in examples if example not in self.references]
        if missing and self.objective.pair_loss.needs_reference:
            values = _score_items(model, encoder.encode(missing), precision)[:, 0].reshape(-1, 2)
            self.references.update(
                (example, (row[0], row[1])) for example, row in zip(missing, values.tolist(), strict=True)
            )

    def list_references(self, examples: Sequence[Example]) -> Floats:
        """Return the log-probabilities by the reference `[E, 2]`; zeros for a loss without one."""
        values = [self.references.get(example, (0.0, 0.0)) for example in examples]
        return np.array(values, dtype=np.float32)

    def add_references(self, items: Items, examples: Sequence[Example]) -> Items:
        """Return the items of examples with the log-probabilities of the reference."""
        if not self.objective.pair_loss.needs_reference:
            return items
        values = self.list_references(examples).reshape(-1, 1)
        return replace(items, sequences=replace(items.sequences, sequence_logits=values))

    def score(
        self, model: ModelWithHead, encoder: TaskEncoder, examples: Sequence[Example], precision: torch.dtype | None
    ) -> dict[str, float]:
        """Return the loss, the accuracy and the mean margin of the rewards, and the loss of the chosen answers."""
        sums, tokens = torch.from_numpy(_score_items(model, encoder.encode(examples), precision)).double().unbind(1)
        reference, pair_loss = torch.from_numpy(self.list_references(examples)).double(), self.objective.pair_loss
        rewards = pair_loss.reward(sums, tokens.clamp(min=1), reference.flatten()).view(-1, 2)
        chosen_rewards, rejected_rewards = rewards.unbind(1)
        nll = -sums[::2].sum() / tokens[::2].sum().clamp(min=1)
        scores: dict[str, Tensor] = {
            "preference_loss": pair_loss.compute(chosen_rewards, rejected_rewards).mean() + pair_loss.nll_weight * nll,
            "reward_accuracy": (chosen_rewards > rejected_rewards).double().mean(),
            "reward_margin": (chosen_rewards - rejected_rewards).mean(),
            "loss": nll,
            "perplexity": nll.exp(),
        }
        return {name: float(value) for name, value in scores.items()}


def build_preference_run(tuning: FinetuneConfig, task: Task, model: ModelWithHead) -> PreferenceRun | None:
    """Return the objective of a decoder on preferences; None for a reward model, and for tasks of other types."""
    tune, inputs = tuning.tune, get_type(task).inputs
    if not inputs.compares_answers or isinstance(tune.preference, RewardModel):
        return None
    pair_loss = tune.preference or DPO()
    if model.model.spec.shape != "decoder":
        raise UsageError(
            f"preferences need a decoder; this model has the shape '{model.shape}': use tune.preference=reward"
        )
    if tune.distill is not None:
        raise UsageError("a teacher cannot be distilled on preferences; remove tune.distill")
    if pair_loss.needs_reference and methods.count_positions(tuning.method):
        raise UsageError(
            "virtual tokens change the model before training, so it is no reference; use --method lora, or "
            "tune.preference=simpo or orpo, which need none"
        )
    return PreferenceRun(PreferenceObjective(pair_loss))


def _score_items(model: ModelWithHead, items: Items, precision: torch.dtype | None) -> Floats:
    """Return the log-probability of each answer, and its number of tokens `[S, 2]`."""
    run = partial(score_answers, model)
    return compute_logits(model, items, per_token=False, tokens=BATCH_TOKENS, precision=precision, run=run)
