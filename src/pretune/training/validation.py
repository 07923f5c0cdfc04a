"""Held-out loss: the same batches, corrupted the same way, every time and in every run."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn

from pretune.core.seed import mix
from pretune.core.types import Batch, Loss
from pretune.training.accumulate import over_ranks
from pretune.training.async_metrics import Report
from pretune.training.distributed import Ranks, reshard
from pretune.training.loop import DROPOUT, Loop
from pretune.training.loss_module import Work
from pretune.training.optim import ASGD, Optim, averaged

ONE = Ranks(torch.device("cpu"))
"""For sums that stay on a rank."""


class Held(Protocol):
    """Held-out batches by their number."""

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """One of them, or a part of it."""


def evaluate(
    module: nn.Module,
    held: Held,
    count: int,
    ranks: Ranks,
    *,
    parts: int = 1,
    precision: torch.dtype | None = None,
    leave: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """The mean loss over `count` batches, read in so many parts per rank; each term, and the main one's perplexity.

    None where `leave`, which is asked before every batch and on all ranks, says that there is no time for it.
    """
    training = module.training
    module.eval()
    summed: Loss | None = None
    try:
        # Not compiled: graphs of their own would take longer to make than they save.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for number in range(count):
                if leave():
                    return None
                for part in range(parts):
                    ranks.seed(mix(0, DROPOUT, number, ranks.rank * parts + part) >> 1)
                    batch = held.batch(number, part=ranks.rank * parts + part, parts=ranks.world * parts)
                    with torch.autocast(ranks.device.type, precision, enabled=precision is not None):
                        loss = over_ranks(module(batch.to(ranks.device)), ONE)
                    summed = loss if summed is None else summed + loss
    finally:
        module.train(training)
        reshard(module)
    assert summed is not None
    terms = over_ranks(summed, ranks).terms()
    means = {name: float(term.sum / term.count.clamp(min=1)) for name, term in terms.items()}
    found = {"loss": sum(terms[name].weight * mean for name, mean in means.items())}
    if len(means) > 1:
        found |= means
    found["perplexity"] = math.exp(min(next(iter(means.values())), 700.0))
    for name, term in terms.items():
        if term.right is not None:
            found[f"{name}_accuracy" if len(terms) > 1 else "accuracy"] = float(term.right / term.count.clamp(min=1))
    return found


class Evaluate:
    """Evaluates every so many steps, and tells it; `left` is called where it had to be left in the middle.

    Where the optimizer averages weights, `work` and `told` see the averages.
    """

    def __init__(
        self,
        work: Callable[[Loop], dict[str, float] | None],
        every: int,
        told: Callable[[Loop, dict[str, float]], None],
        left: Callable[[Loop], None],
    ) -> None:
        self.work, self.every, self.told, self.left = work, every, told, left
        self.seconds = 0.0  # that the last one took

    def __call__(self, loop: Loop, reports: Sequence[Report]) -> None:
        if loop.state.step == 0 or (self.every and loop.state.step % self.every == 0):
            self.now(loop)

    def now(self, loop: Loop) -> None:
        """Evaluate, unless it was done at this step."""
        loop.settle()  # NOTE: the hooks hear of it, this one too: what is asked next may be done by then
        state, begun = loop.state, time.monotonic()
        if state.judged == state.step:
            return
        with averaged(loop.optimizer):
            found = self.work(loop)
            self.seconds = time.monotonic() - begun
            state.evaluating += self.seconds
            if found is not None:
                state.judged, state.held = state.step, {name: x for name, x in found.items() if math.isfinite(x)}
                self.told(loop, found)
        if found is None:
            self.left(loop)


def warn_of_few_evaluations(optimizer: Optim, evaluations: int, warn: Callable[[str], None]) -> None:
    """Warn that an optimizer which averages weights once the validation loss stops falling will not see that."""
    if isinstance(optimizer, ASGD) and not optimizer.can_trigger(evaluations):
        warn(
            f"asgd averages no weights here: {evaluations} evaluations are too few for its trigger with "
            f"train.optimizer.nonmonotone_interval {optimizer.nonmonotone_interval}; lower train.eval_every"
        )


def evaluator(held: Held, count: int, work: Work) -> Callable[[Loop], dict[str, float] | None]:
    """What `Evaluate` does: the model as it is, judged by the objective's evaluation form, unless the run must stop."""

    def judge(loop: Loop) -> dict[str, float] | None:
        trained, loop.trainee.work = loop.trainee.work, work
        try:
            return evaluate(
                loop.trainee,
                held,
                count,
                loop.ranks,
                parts=loop.state.micro,
                precision=loop.precision,
                leave=lambda: loop.ranks.most(loop.asked) > 0,
            )
        finally:
            loop.trainee.work = trained

    return judge
