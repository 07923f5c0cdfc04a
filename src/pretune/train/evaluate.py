"""Held-out loss: the same batches, corrupted the same way, every time and in every run."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn

from pretune.core.seed import mix
from pretune.core.types import Batch, Loss
from pretune.train.counting import over_ranks
from pretune.train.late import Report
from pretune.train.loop import DROPOUT, Loop
from pretune.train.ranks import Ranks
from pretune.train.trainee import Work

ONE = Ranks(torch.device("cpu"))
"""For sums that stay on a rank."""


class Held(Protocol):
    """Held-out batches by their number."""

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """One of them, or a part of it."""


def evaluate(
    module: nn.Module, held: Held, count: int, ranks: Ranks, *, parts: int = 1, precision: torch.dtype | None = None
) -> dict[str, float]:
    """The mean loss over `count` batches, read in so many parts per rank; each term, and the main one's perplexity."""
    training = module.training
    module.eval()
    summed: Loss | None = None
    try:
        with torch.no_grad():
            for number in range(count):
                for part in range(parts):
                    torch.manual_seed(mix(0, DROPOUT, number, ranks.rank * parts + part) >> 1)
                    batch = held.batch(number, part=ranks.rank * parts + part, parts=ranks.world * parts)
                    with torch.autocast(ranks.device.type, precision, enabled=precision is not None):
                        loss = over_ranks(module(batch.to(ranks.device)), ONE)
                    summed = loss if summed is None else summed + loss
    finally:
        module.train(training)
    assert summed is not None
    terms = over_ranks(summed, ranks).terms()
    means = {name: float(term.sum / term.count.clamp(min=1)) for name, term in terms.items()}
    found = {"loss": sum(terms[name].weight * mean for name, mean in means.items())}
    if len(means) > 1:
        found |= means
    found["perplexity"] = math.exp(min(next(iter(means.values())), 700.0))
    return found


class Evaluate:
    """Evaluates every so many steps, and tells it."""

    def __init__(
        self, work: Callable[[Loop], dict[str, float]], every: int, told: Callable[[Loop, dict[str, float]], None]
    ) -> None:
        self.work, self.every, self.told = work, every, told
        self.last = -1
        self.seconds = 0.0  # that the last one took

    def __call__(self, loop: Loop, reports: Sequence[Report]) -> None:
        if self.every and loop.state.step % self.every == 0:
            self.now(loop)

    def now(self, loop: Loop) -> None:
        """Evaluate, unless it was done at this step."""
        if self.last == loop.state.step:
            return
        self.last, begun = loop.state.step, time.monotonic()
        loop.settle()
        found = self.work(loop)
        self.seconds = time.monotonic() - begun
        loop.state.evaluating += self.seconds
        self.told(loop, found)


def evaluator(held: Held, count: int, work: Work) -> Callable[[Loop], dict[str, float]]:
    """What `Evaluate` does: the model as it is, judged by the objective's evaluation form."""

    def judge(loop: Loop) -> dict[str, float]:
        trained, loop.trainee.work = loop.trainee.work, work
        try:
            return evaluate(loop.trainee, held, count, loop.ranks, parts=loop.state.micro, precision=loop.precision)
        finally:
            loop.trainee.work = trained

    return judge
