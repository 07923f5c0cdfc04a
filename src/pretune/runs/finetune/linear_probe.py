"""Linear probe baseline: logistic or ridge regression on features of the frozen model.

Its score shows what pre-training alone provides; the difference is what fine-tuning adds.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.freeze import Full
from pretune.core.types import Batch
from pretune.evaluation.baselines.linear import fit_best_c
from pretune.nn.heads import pool_states
from pretune.runs.finetune.adapted_model import build_encoder, build_task_head, load_base_model
from pretune.runs.finetune.config import AdaptationConfig, FinetuneConfig
from pretune.tasks.decode import Prediction
from pretune.tasks.decode.logits import Floats, compute_logits
from pretune.tasks.encode import TaskEncoder
from pretune.tasks.example import Example
from pretune.tasks.task import Task

TASK_KINDS = ("classification", "pair", "regression")
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Values of C, or of the penalty."""
BATCH_TOKENS = 16_384


class MeanFeatures(nn.Module):
    """Mean-pooled last hidden states."""

    def __init__(self, model: ModelWithHead) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """Return features `[C, W]`, a row per cell."""
        return pool_states(self.model.states(batch), batch, "mean")


def predict_with_probe(
    tuning: FinetuneConfig, task: Task, train: Sequence[Example], test: Sequence[Example], device: torch.device
) -> list[Prediction]:
    """Fit a linear model on the base's features of `train` and predict `test`."""
    body = load_base_model(tuning.base, seed=tuning.train.seed)
    model = (
        adapt(body, build_task_head(task, body, body.tokenizer, AdaptationConfig(text_to_text=False))).eval().to(device)
    )
    encoder = build_encoder(replace(tuning, method=Full()), task, model, [*train])  # without prompt slots
    x, z = (_compute_features(model, encoder, subset) for subset in (train, test))
    mean, std = x.mean(0), x.std(0) + 1e-6
    x, z = (x - mean) / std, (z - mean) / std
    if task.kind == "regression":
        from sklearn.linear_model import RidgeCV

        ridge = RidgeCV(alphas=[10 / choice for choice in PENALTIES]).fit(
            x, [float(example.label or 0) for example in train]
        )
        return [Prediction(value=float(value)) for value in ridge.predict(z)]
    from sklearn.linear_model import LogisticRegression

    y = np.array([int(example.label or 0) for example in train])
    classifier = fit_best_c(LogisticRegression(max_iter=500), x, y, PENALTIES, 3, tuning.train.seed)
    return [Prediction(label=int(label)) for label in classifier.predict(z)]


def _compute_features(model: ModelWithHead, encoder: TaskEncoder, examples: Sequence[Example]) -> Floats:
    items = encoder.encode(examples, training=False)
    return compute_logits(MeanFeatures(model), items, per_token=False, tokens=BATCH_TOKENS)
