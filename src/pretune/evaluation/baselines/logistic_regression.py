"""Logistic regression on dense features: all penalties and all folds are solved at once, on the device that is given.

    loss(w) = mean cross-entropy + |w|^2 / (2 C n)        C is the best of the choices by stratified cross-validation

The solution is scikit-learn's; it is found faster where features go together, as those of a network do. Their principal
axes are found once. Along these the curvature of the loss is bounded by a number for each axis (Böhning, 1992), so that
a gradient step in proportion to it never overshoots, and Nesterov's momentum, begun anew where it leads uphill, does
the rest. What is computed is two products of matrices in a round, for all penalties and folds together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
MAX_ITERATIONS, CHECK_EVERY = 1000, 10
"""Rounds at most, and after how many it is asked whether to go on."""
TOLERANCE = 1e-4
"""The largest slope that is left at the end, as scikit-learn has it."""


@dataclass(frozen=True, slots=True)
class LinearClassifier:
    """A linear classifier."""

    classes: Ints  # [K]
    weight: Floats  # [K, W], of two classes [1, W]: the difference
    bias: Floats  # [K] or [1]
    c: float  # the inverse of the penalty

    def predict(self, x: Floats) -> Ints:
        """The likeliest class of each row."""
        scores = x @ self.weight.T + self.bias
        found: Ints = self.classes[scores.argmax(1) if len(self.weight) > 1 else (scores[:, 0] > 0).astype(int)]
        return found


def fit_logistic_regression(
    x: Floats, y: Ints, choices: Sequence[float], *, folds: int = 3, seed: int = 0, device: torch.device | str = "cpu"
) -> LinearClassifier:
    """The classifier with the best C, fitted on everything; columns of `x` should have the mean 0 and like spreads.

    A label with fewer examples than folds makes the folds fewer; with one alone nothing can be held out, and the choice
    in the middle is taken.
    """
    from sklearn.model_selection import StratifiedKFold

    classes, labels = np.unique(y, return_inverse=True)
    problem = _Problem(x, labels, len(classes), torch.device(device))
    folds = min(folds, int(np.bincount(labels).min()))
    best = choices[len(choices) // 2]
    if folds >= 2 and len(choices) > 1:
        held = np.zeros((folds, len(x)), dtype=bool)
        for fold, (_, out) in enumerate(StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels)):
            held[fold, out] = True
        out = torch.from_numpy(held.repeat(len(choices), axis=0).T).to(problem.device)  # [N, P], fold by fold
        right = problem.mark_correct(problem.solve([*choices] * folds, ~out))
        share = (right & out).sum(0) / out.sum(0)
        best = choices[int(share.view(folds, -1).mean(0).argmax())]
    found = problem.solve([best], torch.ones(len(x), 1, dtype=torch.bool, device=problem.device))[:, 0]
    weight = (problem.axes @ found[:-1]).T.cpu().numpy()
    return LinearClassifier(classes, weight, found[-1].cpu().numpy(), best)


class _Problem:
    """Examples along their principal axes, and the labels."""

    def __init__(self, x: Floats, labels: Ints, classes: int, device: torch.device) -> None:
        self.device, self.binary = device, classes == 2
        rows = torch.as_tensor(x, dtype=torch.float32, device=device)
        spread, self.axes = torch.linalg.eigh(rows.T @ rows)
        one = torch.ones(len(x), 1, device=device)
        self.rows = torch.cat([rows @ self.axes, one], dim=1)  # [N, W+1]
        self.spread = torch.cat([spread.clamp(min=0), one.sum()[None]])
        self.labels = torch.as_tensor(labels, device=device)
        self.target = (
            self.labels[:, None].float() if self.binary else torch.nn.functional.one_hot(self.labels, classes).float()
        )

    def mark_correct(self, w: Tensor) -> Tensor:
        """Which examples `[N, P]` each solution `[W+1, P, K]` gets right."""
        scores = torch.einsum("nw,wpk->npk", self.rows, w)
        said = (scores[..., 0] > 0).long() if self.binary else scores.argmax(-1)
        return said == self.labels[:, None]

    def solve(self, choices: Sequence[float], train_mask: Tensor) -> Tensor:
        """The weights `[W+1, P, K]` of P problems: each has a C, and examples `[N, P]` that it learns from."""
        count = train_mask.sum(0)
        penalty = 1 / (torch.tensor(choices, device=self.device) * count)
        penalty = torch.cat([penalty.expand(len(self.spread) - 1, -1), torch.zeros_like(penalty)[None]])[..., None]
        share = (train_mask / count)[..., None]
        bound = (0.25 if self.binary else 0.5) * self.spread[:, None, None] / count[:, None] + penalty
        w = torch.zeros(len(self.spread), len(choices), self.target.shape[1], device=self.device)
        ahead, pace = w, torch.ones(len(choices), 1, device=self.device)
        for number in range(1, MAX_ITERATIONS + 1):
            scores = torch.einsum("nw,wpk->npk", self.rows, ahead)
            said = scores.sigmoid() if self.binary else scores.softmax(-1)
            slope = torch.einsum("nw,npk->wpk", self.rows, share * (said - self.target[:, None])) + penalty * ahead
            new = ahead - slope / bound
            uphill = (slope * (new - w)).sum((0, 2), keepdim=True)[0] > 0
            pace = torch.where(uphill, 1.0, pace)
            next_pace = (1 + (1 + 4 * pace**2).sqrt()) / 2
            w, ahead, pace = new, new + (pace - 1) / next_pace * (new - w), next_pace
            if number % CHECK_EVERY == 0 and float(slope.abs().max()) < TOLERANCE:
                break
        return w
