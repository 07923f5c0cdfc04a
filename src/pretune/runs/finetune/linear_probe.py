"""A linear probe: the frozen model's features, computed once, under logistic or ridge regression; a baseline.

What it scores tells what pre-training alone has put there; what fine-tuning adds is the difference.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from pretune.adaptation.adapted import Adapted, adapt
from pretune.adaptation.freeze import Full
from pretune.core.types import Batch
from pretune.evaluation.baselines.linear import tuned
from pretune.nn.pooling import summary
from pretune.runs.finetune.adapted_model import base_model, encoder_for, head_for
from pretune.runs.finetune.config import Tune, Tuning
from pretune.tasks.decode import Prediction
from pretune.tasks.decode.logits import Floats, logits_of
from pretune.tasks.encode import TaskEncoder
from pretune.tasks.example import Example
from pretune.tasks.task import Task

KINDS = ("classification", "pair", "regression")
CHOICES = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Of C, or of the penalty."""
TOKENS = 16_384


class Features(nn.Module):
    """The mean of a sequence's last states."""

    def __init__(self, model: Adapted) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """`[C, W]`, a row for each cell."""
        return summary(self.model.states(batch), batch, "mean")


def probe(
    tuning: Tuning, task: Task, train: Sequence[Example], judged: Sequence[Example], device: torch.device
) -> list[Prediction]:
    """What a linear model over the base's features says of examples, learnt from others."""
    body = base_model(tuning.base, seed=tuning.train.seed)
    model = adapt(body, head_for(task, body, body.tokenizer, Tune(text=False))).eval().to(device)
    encoder = encoder_for(replace(tuning, method=Full()), task, model, [*train])  # without slots for a prompt
    x, z = (_features(model, encoder, some) for some in (train, judged))
    mean, std = x.mean(0), x.std(0) + 1e-6
    x, z = (x - mean) / std, (z - mean) / std
    if task.kind == "regression":
        from sklearn.linear_model import RidgeCV

        fitted = RidgeCV(alphas=[10 / choice for choice in CHOICES]).fit(x, [float(one.label or 0) for one in train])
        return [Prediction(value=float(value)) for value in fitted.predict(z)]
    from sklearn.linear_model import LogisticRegression

    y = np.array([int(one.label or 0) for one in train])
    found = tuned(LogisticRegression(max_iter=500), x, y, CHOICES, 3, tuning.train.seed)
    return [Prediction(label=int(label)) for label in found.predict(z)]


def _features(model: Adapted, encoder: TaskEncoder, examples: Sequence[Example]) -> Floats:
    items = encoder.encode(examples, training=False)
    return logits_of(Features(model), items, every=False, tokens=TOKENS)
