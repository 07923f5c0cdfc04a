"""Runs on preferences: the objective, the log-probabilities of the reference, and the scores of pairs.

The reference is the model before training, with an adapter that changes nothing yet. Its log-probabilities are computed
once, for training and held-out pairs, so that no second model is kept and no step computes them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from pretune.adaptation import methods
from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.answer_logprobs import can_share_prompts
from pretune.adaptation.preference import DPO, PreferenceObjective, RewardModel
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import share_prompts
from pretune.runs.finetune.config import FinetuneConfig
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Items
from pretune.tasks.example import Example, Prediction
from pretune.tasks.table_reader import ANSWER_PAIR
from pretune.tasks.task import Task
from pretune.tasks.types import get_type


@dataclass(frozen=True, slots=True)
class PreferenceRun:
    """The objective of a run on preferences, and the log-probabilities of both answers of each example by the
    reference.
    """

    objective: PreferenceObjective
    shares_prompts: bool = False  # in training, the prompt of a pair is computed once
    references: dict[Example, tuple[float, float]] = field(default_factory=dict)

    def find_missing(self, examples: Sequence[Example]) -> list[Example]:
        """Return the examples without a reference, if the loss needs one."""
        if not self.objective.pair_loss.needs_reference:
            return []
        return [example for example in dict.fromkeys(examples) if example not in self.references]

    def add_references(
        self, encoder: TaskEncoder, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> None:
        """Store the log-probabilities of examples, as predicted by the model before training."""
        if examples:
            rows = _sum_logprobs(predictions, count_answer_tokens(encoder, examples)).tolist()
            self.references.update((example, (row[0], row[1])) for example, row in zip(examples, rows, strict=True))

    def attach_references(self, items: Items, examples: Sequence[Example]) -> Items:
        """Return the items of examples with the log-probabilities of the reference, and with shared prompts."""
        sequences = items.sequences
        if self.objective.pair_loss.needs_reference:
            values = np.array([self.references[example] for example in examples], dtype=np.float32).reshape(-1, 1)
            sequences = replace(sequences, sequence_logits=values)
        if not self.shares_prompts:
            return replace(items, sequences=sequences)
        sequences, owners = share_prompts(sequences, len(ANSWER_PAIR))
        rows = items.examples[owners]
        return replace(items, sequences=sequences, examples=rows, sizes=np.bincount(rows))

    def score(
        self, encoder: TaskEncoder, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Return the loss, the accuracy and the mean margin of the rewards, and the loss of the chosen answers."""
        tokens, pair_loss = count_answer_tokens(encoder, examples), self.objective.pair_loss
        sums = _sum_logprobs(predictions, tokens)
        reference = torch.tensor([self.references.get(example, (0.0, 0.0)) for example in examples]).double()
        chosen_rewards, rejected_rewards = pair_loss.reward(sums, tokens, reference).unbind(1)
        nll = -sums[:, 0].sum() / tokens[:, 0].sum()
        scores: dict[str, Tensor] = {
            "preference_loss": pair_loss.compute(chosen_rewards, rejected_rewards).mean() + pair_loss.nll_weight * nll,
            "reward_accuracy": (chosen_rewards > rejected_rewards).double().mean(),
            "reward_margin": (chosen_rewards - rejected_rewards).mean(),
            "loss": nll,
            "perplexity": nll.exp(),
        }
        return {name: float(value) for name, value in scores.items()}


def count_answer_tokens(encoder: TaskEncoder, examples: Sequence[Example]) -> Tensor:
    """Return the number of tokens of both answers of each example `[E, 2]`; at least 1."""
    sequences = encoder.encode(examples, training=False).sequences
    assert sequences.targets is not None
    counts = np.add.reduceat(sequences.targets != IGNORE_INDEX, sequences.offsets[:-1], dtype=np.int64)
    return torch.from_numpy(counts).clamp(min=1).view(-1, 2)


def _sum_logprobs(predictions: Sequence[Prediction], tokens: Tensor) -> Tensor:
    """Return the log-probabilities of answers `[E, 2]` from their means."""
    return torch.tensor([prediction.scores for prediction in predictions], dtype=torch.float64) * tokens


def build_preference_run(tuning: FinetuneConfig, task: Task, model: ModelWithHead) -> PreferenceRun | None:
    """Return the objective of a decoder on preferences; None for a reward model, and for tasks of other types."""
    tune, inputs = tuning.tune, get_type(task).inputs
    if not inputs.compares_answers or isinstance(tune.preference, RewardModel):
        return None
    pair_loss = tune.preference or DPO()
    if model.model.spec.shape != "decoder":
        raise UsageError(
            f"preferences need a decoder; this model has the shape '{model.shape}': use tune.preference=reward_model"
        )
    if tune.distill is not None:
        raise UsageError("a teacher cannot be distilled on preferences; remove tune.distill")
    if pair_loss.needs_reference and methods.count_positions(tuning.method):
        raise UsageError(
            "virtual tokens change the model before training, so it is no reference; use --method lora, or "
            "tune.preference=simpo or orpo, which need none"
        )
    shares_prompts = can_share_prompts(model.model, methods.count_positions(tuning.method))
    return PreferenceRun(PreferenceObjective(pair_loss), shares_prompts=shares_prompts)
