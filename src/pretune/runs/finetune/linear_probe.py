"""Linear probe on features of the frozen model: as a baseline, and as the initial head of full fine-tuning (LP-FT).

As a baseline, its score shows what pre-training alone provides; the difference is what fine-tuning adds.

LP-FT is of Kumar et al. (2022), "Fine-tuning can distort pretrained features". A random head sends noise into the body
in its first steps; a fitted one does not. The benefit is largest with few labels.

    pretune finetune runs/small --train train.csv --set tune.head=probe --set 'tune.pooling={"mode": "mean"}'

The probe is a logistic regression on dense features: all penalties and folds are solved at once, on any device.

    loss(w) = mean cross-entropy + |w|^2 / (2 C n)        C is the best of the choices by stratified cross-validation

The solution is scikit-learn's, found faster for correlated features such as those of a network. Their principal axes
are computed once. Along each axis the curvature of the loss has a constant upper bound (Böhning, 1992), so a gradient
step of that size never overshoots; Nesterov's momentum with restarts does the rest. An iteration costs two matrix
products for all penalties and folds together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.freeze import Full
from pretune.adaptation.heads.base import SequenceHead
from pretune.adaptation.heads.sequence import Classification
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.heads import pool_states
from pretune.runs.finetune.adapted_model import build_encoder, build_task_head, load_base_model
from pretune.runs.finetune.config import AdaptationConfig, FinetuneConfig
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Floats, Items
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import compute_logits
from pretune.tasks.task import Task

Ints = NDArray[np.int64]
MAX_ITERATIONS, CHECK_EVERY = 1000, 10
"""Maximum number of iterations, and iterations between convergence checks."""
TOLERANCE = 1e-4
"""Largest gradient entry at convergence, as in scikit-learn."""


@dataclass(frozen=True, slots=True)
class LinearClassifier:
    """Fitted linear classifier."""

    classes: Ints  # [K]
    weight: Floats  # [K, W], for two classes [1, W]: the difference
    bias: Floats  # [K] or [1]
    c: float  # inverse regularization strength

    def predict(self, x: Floats) -> Ints:
        """Return the likeliest class of each row."""
        scores = x @ self.weight.T + self.bias
        predictions: Ints = self.classes[scores.argmax(1) if len(self.weight) > 1 else (scores[:, 0] > 0).astype(int)]
        return predictions


def fit_logistic_regression(
    x: Floats, y: Ints, choices: Sequence[float], *, folds: int = 3, seed: int = 0, device: torch.device | str = "cpu"
) -> LinearClassifier:
    """Fit a classifier with the best C, refitted on all data; columns of `x` should be standardized.

    The number of folds is at most the size of the smallest class; if that is 1, the middle choice is used.
    """
    from sklearn.model_selection import StratifiedKFold

    classes, labels = np.unique(y, return_inverse=True)
    problem = _Problem(x, labels, len(classes), torch.device(device))
    folds = min(folds, int(np.bincount(labels).min()))
    best = choices[len(choices) // 2]
    if folds >= 2 and len(choices) > 1:
        is_held_out = np.zeros((folds, len(x)), dtype=bool)
        for fold, (_, out) in enumerate(StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels)):
            is_held_out[fold, out] = True
        out = torch.from_numpy(is_held_out.repeat(len(choices), axis=0).T).to(problem.device)  # [N, P], fold by fold
        right = problem.mark_correct(problem.solve([*choices] * folds, ~out))
        share = (right & out).sum(0) / out.sum(0)
        best = choices[int(share.view(folds, -1).mean(0).argmax())]
    solution = problem.solve([best], torch.ones(len(x), 1, dtype=torch.bool, device=problem.device))[:, 0]
    weight = (problem.axes @ solution[:-1]).T.cpu().numpy()
    return LinearClassifier(classes, weight, solution[-1].cpu().numpy(), best)


class _Problem:
    """Examples along their principal axes, and the labels."""

    def __init__(self, x: Floats, labels: Ints, classes: int, device: torch.device) -> None:
        self.device, self.binary = device, classes == 2
        rows = torch.as_tensor(x, dtype=torch.float32, device=device)
        spread, self.axes = torch.linalg.eigh(rows.T @ rows)
        ones = torch.ones(len(x), 1, device=device)
        self.rows = torch.cat([rows @ self.axes, ones], dim=1)  # [N, W+1]
        self.spread = torch.cat([spread.clamp(min=0), ones.sum()[None]])
        self.labels = torch.as_tensor(labels, device=device)
        self.target = (
            self.labels[:, None].float() if self.binary else torch.nn.functional.one_hot(self.labels, classes).float()
        )

    def mark_correct(self, w: Tensor) -> Tensor:
        """Return which examples `[N, P]` each solution `[W+1, P, K]` classifies correctly."""
        scores = torch.einsum("nw,wpk->npk", self.rows, w)
        predictions = (scores[..., 0] > 0).long() if self.binary else scores.argmax(-1)
        return predictions == self.labels[:, None]

    def solve(self, choices: Sequence[float], train_mask: Tensor) -> Tensor:
        """Return the weights `[W+1, P, K]` of P problems, each with a C and training examples `[N, P]`."""
        count = train_mask.sum(0)
        penalty = 1 / (torch.tensor(choices, device=self.device) * count)
        penalty = torch.cat([penalty.expand(len(self.spread) - 1, -1), torch.zeros_like(penalty)[None]])[..., None]
        share = (train_mask / count)[..., None]
        bound = (0.25 if self.binary else 0.5) * self.spread[:, None, None] / count[:, None] + penalty
        w = torch.zeros(len(self.spread), len(choices), self.target.shape[1], device=self.device)
        lookahead, momentum = w, torch.ones(len(choices), 1, device=self.device)
        for number in range(1, MAX_ITERATIONS + 1):
            scores = torch.einsum("nw,wpk->npk", self.rows, lookahead)
            probabilities = scores.sigmoid() if self.binary else scores.softmax(-1)
            slope = (
                torch.einsum("nw,npk->wpk", self.rows, share * (probabilities - self.target[:, None]))
                + penalty * lookahead
            )
            new = lookahead - slope / bound
            uphill = (slope * (new - w)).sum((0, 2), keepdim=True)[0] > 0
            momentum = torch.where(uphill, 1.0, momentum)
            next_momentum = (1 + (1 + 4 * momentum**2).sqrt()) / 2
            w, lookahead, momentum = new, new + (momentum - 1) / next_momentum * (new - w), next_momentum
            if number % CHECK_EVERY == 0 and float(slope.abs().max()) < TOLERANCE:
                break
        return w


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
        return self.pool(self.model.states(batch), batch)


def fit_probe(
    features: Floats, labels: Ints, penalties: Sequence[float], *, seed: int, device: torch.device
) -> LinearClassifier:
    """Fit a logistic regression on standardized features, its penalty selected by cross-validation.

    The weights returned are those for the features as they are.
    """
    mean, std = features.mean(0), features.std(0) + 1e-6
    classifier = fit_logistic_regression((features - mean) / std, labels, penalties, seed=seed, device=device)
    weight = classifier.weight / std
    return replace(classifier, weight=weight, bias=classifier.bias - weight @ mean)


def predict_with_probe(
    tuning: FinetuneConfig, task: Task, train: Sequence[Example], test: Sequence[Example], device: torch.device
) -> list[Prediction]:
    """Fit a linear model on the base's mean-extractor features of `train` and predict `test`."""
    body = load_base_model(tuning.base, seed=tuning.train.seed)
    head = build_task_head(task, body, body.tokenizer, AdaptationConfig(text_to_text=False))
    model = adapt(body, head).eval().to(device)
    encoder = build_encoder(replace(tuning, method=Full()), task, model, [*train])  # without prompt slots
    x, z = (_compute_features(model, encoder, subset) for subset in (train, test))
    if task.type.probe == "values":
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
    is_linear = isinstance(head, SequenceHead) and not (head.dense or head.transform) and head.out.bias is not None
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
