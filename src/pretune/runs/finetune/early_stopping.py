"""Model selection on dev: scores by step, the best weights, and early stopping."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pretune.adaptation.gradual_unfreezing import UnfreezingHook
from pretune.training.checkpoints import Checkpoint
from pretune.training.loop import Loop

LOWEST_SCORE = -math.inf
HISTORY_GROUP, BEST_GROUP = "course", "best"
"""Checkpoint groups: score history and state of gradual unfreezing; the best weights."""


@dataclass(slots=True, kw_only=True)
class EarlyStopping:
    """Scores on dev so far. Everything follows from `scores`, which checkpoints store with the best weights."""

    parameters: Mapping[str, Tensor]  # all that are ever trained
    unfreezing: list[UnfreezingHook]
    patience: int | None
    scores: list[tuple[int, float]] = field(default_factory=list)  # (step, score)
    best_weights: dict[str, Tensor] | None = None

    @property
    def best_step(self) -> int | None:
        """First step with the highest score."""
        if not self.scores:
            return None
        top = max(score for _, score in self.scores)
        return next(step for step, score in self.scores if score == top)

    @property
    def evaluations_since_best(self) -> int:
        """Number of evaluations since the best one."""
        best = self.best_step
        return 0 if best is None else sum(step > best for step, _ in self.scores)

    def should_stop(self) -> bool:
        """Return whether patience is exhausted."""
        return self.patience is not None and self.evaluations_since_best >= self.patience

    def record(self, loop: Loop, metrics: Mapping[str, float]) -> None:
        """Record an evaluation; the first metric is the official one."""
        score = next(iter(metrics.values()))
        if score > max((old for _, old in self.scores), default=LOWEST_SCORE):
            self.best_weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.parameters.items()}
            loop.state.best, loop.state.best_step = -score, loop.state.step
        self.scores.append((loop.state.step, score))

    @torch.no_grad()
    def restore_best_weights(self) -> None:
        """Restore the best weights."""
        for name, tensor in (self.best_weights or {}).items():
            self.parameters[name].copy_(tensor)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return the checkpoint groups."""
        history = {"scores": torch.tensor(self.scores, dtype=torch.float64).reshape(-1, 2)}
        for number, hook in enumerate(self.unfreezing):
            history[f"unfrozen.{number}"] = torch.tensor(hook.state)
        return {HISTORY_GROUP: history, **({} if self.best_weights is None else {BEST_GROUP: self.best_weights})}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state of a resumed run."""
        history = checkpoint.load_tensors(HISTORY_GROUP)
        self.scores = [(int(step), score) for step, score in history["scores"].tolist()]
        self.best_weights = checkpoint.load_tensors(BEST_GROUP) if BEST_GROUP in checkpoint.groups else None
        for number, hook in enumerate(self.unfreezing):
            num_unfrozen, num_stale, best_score = history[f"unfrozen.{number}"].tolist()
            hook.restore((num_unfrozen, num_stale, best_score))


def skip_when_stopping(evaluate: Callable[[], dict[str, float]]) -> Callable[[Loop], dict[str, float] | None]:
    """Wrap an evaluation to do nothing if the run must stop, which all ranks agree on."""

    def run(loop: Loop) -> dict[str, float] | None:
        return None if loop.ranks.max(loop.stop_signal) else evaluate()

    return run
