"""Linear probe on features of the frozen model: as a baseline, and as the initial head of full fine-tuning (LP-FT).

As a baseline, its score shows what pre-training alone provides; the difference is what fine-tuning adds.

LP-FT is of Kumar et al. (2022), "Fine-tuning can distort pretrained features". A random head sends noise into the body
in its first steps; a fitted one does not. The benefit is largest with few labels.

    pretune finetune runs/small --train train.csv --set tune.head=probe --set 'tune.pooling={"mode": "mean"}'

The probe is that of `pretune.evaluation.logistic_regression`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.freeze import Full
from pretune.adaptation.heads.base import SequenceHead
from pretune.adaptation.heads.sequence import Classification
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.evaluation.logistic_regression import fit_probe
from pretune.nn.heads import pool_states
from pretune.runs.finetune.adapted_model import build_encoder, build_task_head, load_base_model
from pretune.runs.finetune.config import AdaptationConfig, FinetuneConfig
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Floats, Items
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import compute_logits
from pretune.tasks.task import Task
from pretune.tasks.types import get_type

BASELINE_PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Values of C, the inverse of the penalty, for the baseline."""
HEAD_PENALTIES = (0.001, 0.01, 0.1, 1.0)
"""Values of C for a head."""
BATCH_TOKENS = 16_384


class PooledFeatures(nn.Module):
    """Pooled hidden states of a model; `pool` maps states and batch to a row per cell."""

    def __init__(self, model: ModelWithHead, pool: Callable[[Tensor, Batch], Tensor]) -> None:
        super().__init__()
        self.model, self.pool = model, pool

    def forward(self, batch: Batch) -> Tensor:
        """Return features `[C, W]`, a row per cell."""
        states = self.model.states(batch)
        return states if batch.features is not None else self.pool(states, batch)


def predict_with_probe(
    tuning: FinetuneConfig, task: Task, train: Sequence[Example], test: Sequence[Example], device: torch.device
) -> list[Prediction]:
    """Fit a linear model on the base's mean-extractor features of `train` and predict `test`."""
    body = load_base_model(tuning.base, seed=tuning.train.seed)
    head = build_task_head(task, body, body.tokenizer, AdaptationConfig(text_to_text=False))
    model = adapt(body, head).eval().to(device)
    encoder = build_encoder(replace(tuning, method=Full()), task, model, [*train])  # without prompt slots
    x, z = (_compute_features(model, encoder, subset) for subset in (train, test))
    if get_type(task).scoring.gold == "score":
        from sklearn.linear_model import RidgeCV

        mean, std = x.mean(0), x.std(0) + 1e-6
        values = [float(example.label or 0) for example in train]
        ridge = RidgeCV(alphas=[10 / choice for choice in BASELINE_PENALTIES]).fit((x - mean) / std, values)
        return [Prediction(value=float(value)) for value in ridge.predict((z - mean) / std)]
    y = np.array([int(example.label or 0) for example in train])
    classifier = fit_probe(x, y, BASELINE_PENALTIES, seed=tuning.train.seed, device=device)
    return [Prediction(label=int(label)) for label in classifier.predict(z)]


def _compute_features(model: ModelWithHead, encoder: TaskEncoder, examples: Sequence[Example]) -> Floats:
    extractor = PooledFeatures(model, partial(pool_states, mode="mean"))
    return compute_logits(extractor, encoder.encode(examples, training=False), per_token=False, tokens=BATCH_TOKENS)


def fit_head(model: ModelWithHead, items: Items, *, seed: int, precision: torch.dtype | None = None) -> Floats | None:
    """Fit the head in place by logistic regression on its features of the training examples.

    The penalty is selected by cross-validation. Classes without examples keep their weights. Returns the mean of the
    features, for `center_dropout`; None if there is only one class.
    """
    head, y = model.head, items.sequences.labels
    is_linear = (
        isinstance(head, SequenceHead)
        and not (head.dense or head.transform or head.input_norm)
        and head.out.bias is not None
    )
    if not isinstance(head, SequenceHead) or not is_linear or not isinstance(model.spec, Classification) or y is None:
        raise UsageError(
            f"tune.head 'probe' needs a linear classification head with a bias, got the head "
            f'\'{config.get_kind(model.spec)}\'; set tune.pooling={{"mode": "mean"}}, or tune.head=random'
        )
    if len(np.unique(y)) < 2:
        return None
    device = head.out.weight.device
    extractor = PooledFeatures(model, head.pool)
    x = compute_logits(extractor, items, per_token=False, tokens=BATCH_TOKENS, precision=precision)
    probe = fit_probe(x, y, HEAD_PENALTIES, seed=seed, device=device)
    weight: Any = probe.weight
    bias: Any = probe.bias
    if len(weight) == 1:  # binary: the difference of two classes
        weight, bias = np.stack([-weight[0], weight[0]]) / 2, np.stack([-bias[0], bias[0]]) / 2
    with torch.no_grad():
        rows = torch.from_numpy(probe.classes).to(device)
        head.out.weight[rows] = torch.from_numpy(weight).to(head.out.weight)
        head.out.bias[rows] = torch.from_numpy(bias).to(head.out.bias)
    mean: Floats = x.mean(0)
    return mean


def center_dropout(model: ModelWithHead, mean: Floats | None) -> None:
    """Make dropout insert the mean for dropped values, as the bias of a fitted head expects."""
    if mean is not None and model.head is not None:
        weight = model.head.get_parameter("out.weight")
        model.head.center = torch.from_numpy(mean).to(weight)
