"""Baselines of instructions: the model before fine-tuning, asked alone and after some solved examples."""

import gc
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from pretune.adaptation.adapted import adapt
from pretune.adaptation.freeze import Full
from pretune.adaptation.heads.token import Generation
from pretune.core.seed import mix
from pretune.evaluation.baselines import BaselineResult
from pretune.runs.finetune.adapted_model import build_encoder, load_base_model
from pretune.runs.finetune.config import FinetuneConfig
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import compute_answer_scores, predict
from pretune.tasks.task import Task
from pretune.tasks.types import get_type
from pretune.tasks.types.instruction import INSTRUCTION, add_shots

ZERO_SHOT_NAME, FEW_SHOT_NAME = "untuned", "few_shot"
SHOTS = 4


def has_untuned_baselines(task: Task) -> bool:
    """Return whether the model before fine-tuning can do the task."""
    return task.kind == INSTRUCTION.name


def run_untuned(
    tuning: FinetuneConfig, task: Task, train: Sequence[Example], test: Sequence[Example], device: torch.device
) -> list[BaselineResult]:
    """Return the answers of the base model without and with examples before the question, and its loss."""
    gc.collect()
    body = get_type(task).inputs.prepare_model(load_base_model(tuning.base, seed=tuning.train.seed))
    model = adapt(body, Generation()).eval().to(device)
    encoder = build_encoder(replace(tuning, method=Full()), task, model, [*train])  # without prompt slots
    precision = tuning.train.resolve_precision(device)
    order = sorted(range(len(train)), key=lambda i: mix(tuning.train.seed, i))
    shots = [train[i] for i in order[:SHOTS]]
    with torch.compiler.set_stance("force_eager"):
        start = time.perf_counter()
        scores = compute_answer_scores(model, encoder, test, precision)
        answers = predict(model, encoder, test, precision=precision)
        middle = time.perf_counter()
        shot_answers = predict(model, encoder, [_prepend(encoder, e, shots) for e in test], precision=precision)
    return [
        _describe(ZERO_SHOT_NAME, "Model before fine-tuning", answers, middle - start, scores),
        _describe(
            FEW_SHOT_NAME, f"The same after {len(shots)} solved examples", shot_answers, time.perf_counter() - middle
        ),
    ]


def _prepend(encoder: TaskEncoder, example: Example, shots: Sequence[Example]) -> Example:
    """Return an example after as many shots as fit."""
    room = encoder.rules.max_length - encoder.rules.max_new_tokens
    for count in range(len(shots), 0, -1):
        candidate = add_shots(example, shots[:count])
        if encoder.encode([candidate], training=False).counts.longest < room:
            return candidate
    return example


def _describe(
    name: str, about: str, answers: list[Prediction], seconds: float, scores: dict[str, float] | None = None
) -> BaselineResult:
    return BaselineResult(name=name, description=about, predictions=answers, seconds=seconds, scores=scores or {})
