"""Baselines of generated answers: the model before fine-tuning, asked alone and after some solved examples."""

import gc
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.freeze import Full
from pretune.adaptation.heads.token import Generation
from pretune.core.seed import mix
from pretune.evaluation.baselines import FEW_SHOT, ZERO_SHOT, BaselineResult
from pretune.runs.finetune.adapted_model import build_encoder, load_base_model
from pretune.runs.finetune.config import FinetuneConfig
from pretune.runs.finetune.task_data import TaskData
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import compute_answer_scores, predict
from pretune.tasks.types import get_type
from pretune.tasks.types.instruction import add_shots

SHOTS = 4


class UntunedModel:
    """The model before fine-tuning, loaded when the first of its baselines needs it."""

    def __init__(self, tuning: FinetuneConfig, task_data: TaskData, device: torch.device) -> None:
        self.tuning, self.task_data, self.device = tuning, task_data, device
        self.precision = tuning.train.resolve_precision(device)
        self._loaded: tuple[ModelWithHead, TaskEncoder] | None = None

    def answer(self, train: Sequence[Example]) -> BaselineResult:
        """Return the answers of the model alone, with the loss of the reference answers."""
        start = time.perf_counter()
        model, encoder = self._load(train)
        with torch.compiler.set_stance("force_eager"):
            is_reward = get_type(self.task_data.task).scoring.is_reward
            examples = self.task_data.eval_examples
            scores = {} if is_reward else compute_answer_scores(model, encoder, examples, self.precision)
            predictions = self._predict(model, encoder, examples)
        seconds = time.perf_counter() - start
        about = "Model before fine-tuning"
        return BaselineResult(
            name=ZERO_SHOT, description=about, predictions=predictions, seconds=seconds, scores=scores
        )

    def answer_after_shots(self, train: Sequence[Example]) -> BaselineResult:
        """Return the answers of the model after as many solved examples as fit, at most `SHOTS`."""
        start = time.perf_counter()
        model, encoder = self._load(train)
        order = sorted(range(len(train)), key=lambda i: mix(self.tuning.train.seed, i))
        shots = [train[i] for i in order[:SHOTS]]
        predictions = self._predict(model, encoder, [_prepend(encoder, e, shots) for e in self.task_data.eval_examples])
        about = f"The same after {len(shots)} solved examples"
        seconds = time.perf_counter() - start
        return BaselineResult(name=FEW_SHOT, description=about, predictions=predictions, seconds=seconds)

    def _load(self, train: Sequence[Example]) -> tuple[ModelWithHead, TaskEncoder]:
        if self._loaded is None:
            gc.collect()
            base, task = load_base_model(self.tuning.base, seed=self.tuning.train.seed), self.task_data.task
            model = adapt(get_type(task).inputs.prepare_model(base), Generation()).eval().to(self.device)
            no_slots = replace(self.tuning, method=Full())  # for prompts
            self._loaded = model, build_encoder(no_slots, task, model, [*train])
        return self._loaded

    def _predict(self, model: ModelWithHead, encoder: TaskEncoder, examples: Sequence[Example]) -> list[Prediction]:
        with torch.compiler.set_stance("force_eager"):
            return predict(model, encoder, examples, precision=self.precision)


def _prepend(encoder: TaskEncoder, example: Example, shots: Sequence[Example]) -> Example:
    """Return an example after as many shots as fit."""
    room = encoder.rules.max_length - encoder.rules.max_new_tokens
    for count in range(len(shots), 0, -1):
        candidate = add_shots(example, shots[:count])
        if encoder.encode([candidate], training=False).counts.longest < room:
            return candidate
    return example
