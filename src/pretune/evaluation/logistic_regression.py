"""Logistic regression on dense features: all penalties and folds are solved at once, on any device.

    loss(w) = mean cross-entropy + |w|^2 / (2 C n)        C is the best of the choices by stratified cross-validation

The solution is scikit-learn's, found faster for correlated features such as those of a network. Their principal axes
are computed once. Along each axis the curvature of the loss has a constant upper bound (Böhning, 1992), so a gradient
step of that size never overshoots; Nesterov's momentum with restarts does the rest. An iteration costs two matrix
products for all penalties and folds together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
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


def fit_probe(
    features: Floats,
    labels: Ints,
    choices: Sequence[float],
    *,
    folds: int = 3,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> LinearClassifier:
    """Fit a logistic regression on standardized features, with the best C by cross-validation.

    The weights returned are those for the features as they are.
    """
    mean, std = features.mean(0), features.std(0) + 1e-6
    x = (features - mean) / std
    classifier = fit_logistic_regression(x, labels, choices, folds=folds, seed=seed, device=device)
    weight = classifier.weight / std
    return replace(classifier, weight=weight, bias=classifier.bias - weight @ mean)
