"""Choices on dev: the official metric every so many steps, the weights that had the best, and when to stop."""

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
"""Groups of a checkpoint: all scores and how far gradual unfreezing has come; the best weights."""


@dataclass(slots=True, kw_only=True)
class EarlyStopping:
    """What dev has said so far. All follows from `scores`, which lie in checkpoints with the best weights."""

    parameters: Mapping[str, Tensor]  # all that is ever trained
    unfreezing: list[UnfreezingHook]
    patience: int | None
    scores: list[tuple[int, float]] = field(default_factory=list)  # of a step
    best_weights: dict[str, Tensor] | None = None

    @property
    def best_step(self) -> int | None:
        """The first step that had the highest score."""
        if not self.scores:
            return None
        top = max(score for _, score in self.scores)
        return next(step for step, score in self.scores if score == top)

    @property
    def evaluations_since_best(self) -> int:
        """Evaluations since the best one."""
        best = self.best_step
        return 0 if best is None else sum(step > best for step, _ in self.scores)

    def should_stop(self) -> bool:
        """Whether it is time to stop early."""
        return self.patience is not None and self.evaluations_since_best >= self.patience

    def record(self, loop: Loop, metrics: Mapping[str, float]) -> None:
        """Hear of an evaluation: the first number is the official one."""
        score = next(iter(metrics.values()))
        if score > max((old for _, old in self.scores), default=LOWEST_SCORE):
            self.best_weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.parameters.items()}
            loop.state.best, loop.state.best_step = -score, loop.state.step
        self.scores.append((loop.state.step, score))

    @torch.no_grad()
    def restore_best_weights(self) -> None:
        """Put the best weights back."""
        for name, tensor in (self.best_weights or {}).items():
            self.parameters[name].copy_(tensor)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint needs beside the model and the optimiser."""
        told = {"scores": torch.tensor(self.scores, dtype=torch.float64).reshape(-1, 2)}
        for number, hook in enumerate(self.unfreezing):
            told[f"unfrozen.{number}"] = torch.tensor(hook.state)
        return {HISTORY_GROUP: told, **({} if self.best_weights is None else {BEST_GROUP: self.best_weights})}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Be where a run was that is resumed."""
        told = checkpoint.load_tensors(HISTORY_GROUP)
        self.scores = [(int(step), score) for step, score in told["scores"].tolist()]
        self.best_weights = checkpoint.load_tensors(BEST_GROUP) if BEST_GROUP in checkpoint.groups else None
        for number, hook in enumerate(self.unfreezing):
            opened, stale, judged = told[f"unfrozen.{number}"].tolist()
            hook.restore((opened, stale, judged))


def skip_when_stopping(evaluate: Callable[[], dict[str, float]]) -> Callable[[Loop], dict[str, float] | None]:
    """What `Evaluate` does: nothing where the run must stop, which all ranks agree on."""

    def judged(loop: Loop) -> dict[str, float] | None:
        return None if loop.ranks.max(loop.stop_signal) else evaluate()

    return judged
