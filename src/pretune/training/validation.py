"""Held-out loss: the same batches, corrupted the same way, every time and in every run."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn

from pretune.core.seed import mix
from pretune.core.types import Batch, Loss
from pretune.training.accumulate import reduce_over_ranks
from pretune.training.async_metrics import StepMetrics
from pretune.training.distributed import Ranks, reshard
from pretune.training.loop import DROPOUT, Loop
from pretune.training.loss_module import TrainingObjective
from pretune.training.optim import ASGD, Optim, use_averages

LOCAL_RANK = Ranks(torch.device("cpu"))
"""For sums that stay on a rank."""


class HeldOutBatches(Protocol):
    """Held-out batches by their number."""

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """One of them, or a part of it."""


def compute_validation_loss(
    module: nn.Module,
    batches: HeldOutBatches,
    count: int,
    ranks: Ranks,
    *,
    parts: int = 1,
    precision: torch.dtype | None = None,
    should_abort: Callable[[], bool] = lambda: False,
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
                if should_abort():
                    return None
                for part in range(parts):
                    ranks.seed(mix(0, DROPOUT, number, ranks.rank * parts + part) >> 1)
                    batch = batches.batch(number, part=ranks.rank * parts + part, parts=ranks.world * parts)
                    with torch.autocast(ranks.device.type, precision, enabled=precision is not None):
                        loss = reduce_over_ranks(module(batch.to(ranks.device)), LOCAL_RANK)
                    summed = loss if summed is None else summed + loss
    finally:
        module.train(training)
        reshard(module)
    assert summed is not None
    terms = reduce_over_ranks(summed, ranks).get_terms()
    means = {name: float(term.sum / term.count.clamp(min=1)) for name, term in terms.items()}
    found = {"loss": sum(terms[name].weight * mean for name, mean in means.items())}
    if len(means) > 1:
        found |= means
    found["perplexity"] = math.exp(min(next(iter(means.values())), 700.0))
    for name, term in terms.items():
        if term.correct is not None:
            found[f"{name}_accuracy" if len(terms) > 1 else "accuracy"] = float(term.correct / term.count.clamp(min=1))
    return found


class ValidationHook:
    """Evaluates every so many steps, and tells it; `on_abort` is called where it had to be left in the middle.

    Where the optimizer averages weights, `evaluate` and `on_result` see the averages.
    """

    def __init__(
        self,
        evaluate: Callable[[Loop], dict[str, float] | None],
        every: int,
        on_result: Callable[[Loop, dict[str, float]], None],
        on_abort: Callable[[Loop], None],
    ) -> None:
        self.evaluate, self.every, self.on_result, self.on_abort = evaluate, every, on_result, on_abort
        self.seconds = 0.0  # that the last one took

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        if loop.state.step == 0 or (self.every and loop.state.step % self.every == 0):
            self.run(loop)

    def run(self, loop: Loop) -> None:
        """Evaluate, unless it was done at this step."""
        loop.flush()  # NOTE: the hooks hear of it, this one too: what is asked next may be done by then
        state, begun = loop.state, time.monotonic()
        if state.judged == state.step:
            return
        with use_averages(loop.optimizer):
            found = self.evaluate(loop)
            self.seconds = time.monotonic() - begun
            state.evaluating += self.seconds
            if found is not None:
                state.judged, state.held = state.step, {name: x for name, x in found.items() if math.isfinite(x)}
                self.on_result(loop, found)
        if found is None:
            self.on_abort(loop)


def warn_of_few_evaluations(optimizer: Optim, evaluations: int, warn: Callable[[str], None]) -> None:
    """Warn that an optimizer which averages weights once the validation loss stops falling will not see that."""
    if isinstance(optimizer, ASGD) and not optimizer.can_trigger(evaluations):
        warn(
            f"asgd averages no weights here: {evaluations} evaluations are too few for its trigger with "
            f"train.optimizer.nonmonotone_interval {optimizer.nonmonotone_interval}; lower train.eval_every"
        )


def build_evaluator(
    batches: HeldOutBatches, count: int, objective: TrainingObjective
) -> Callable[[Loop], dict[str, float] | None]:
    """What `ValidationHook` does: the model as it is, judged by the objective's evaluation form, unless the run must stop."""

    def judge(loop: Loop) -> dict[str, float] | None:
        trained, loop.module.objective = loop.module.objective, objective
        try:
            return compute_validation_loss(
                loop.module,
                batches,
                count,
                loop.ranks,
                parts=loop.state.micro,
                precision=loop.precision,
                should_abort=lambda: loop.ranks.max(loop.stop_signal) > 0,
            )
        finally:
            loop.module.objective = trained

    return judge
