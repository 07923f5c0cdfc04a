"""Held-out loss: the same batches with the same corruption at every evaluation and in every run."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn

from pretune.core.seed import mix
from pretune.core.types import Batch, Loss
from pretune.training.distributed import Ranks, reshard
from pretune.training.loop import DROPOUT, Loop
from pretune.training.optim import ASGD, Optim, use_averages
from pretune.training.step import StepMetrics, TrainingObjective, reduce_over_ranks

LOCAL_RANK = Ranks(torch.device("cpu"))
"""A single-rank group, for sums that stay on a rank."""


class HeldOutBatches(Protocol):
    """Held-out batches by number."""

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """Return a batch, or a part of it."""


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
    """Compute the mean loss over `count` batches, each split into `parts` per rank.

    Returns the loss, each term if there are several, the perplexity of the first term, and accuracies; or None if
    `should_abort`, called before every batch on all ranks, returns True.
    """
    training = module.training
    module.eval()
    total: Loss | None = None
    try:
        # Not compiled: compiling graphs for evaluation takes longer than it saves.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for number in range(count):
                if should_abort():
                    return None
                for part in range(parts):
                    ranks.seed(mix(0, DROPOUT, number, ranks.rank * parts + part) >> 1)
                    batch = batches.batch(number, part=ranks.rank * parts + part, parts=ranks.world * parts)
                    with torch.autocast(ranks.device.type, precision, enabled=precision is not None):
                        loss = reduce_over_ranks(module(batch.to(ranks.device)), LOCAL_RANK)
                    total = loss if total is None else total + loss
    finally:
        module.train(training)
        reshard(module)
    assert total is not None
    terms = reduce_over_ranks(total, ranks).get_terms()
    means = {name: float(term.sum / term.count.clamp(min=1)) for name, term in terms.items()}
    metrics = {"loss": sum(terms[name].weight * mean for name, mean in means.items())}
    if len(means) > 1:
        metrics |= means
    metrics["perplexity"] = math.exp(min(next(iter(means.values())), 700.0))
    for name, term in terms.items():
        if term.correct is not None:
            metrics[f"{name}_accuracy" if len(terms) > 1 else "accuracy"] = float(
                term.correct / term.count.clamp(min=1)
            )
    return metrics


class ValidationHook:
    """Evaluates at fixed steps and reports the result; `on_abort` is called if the evaluation was interrupted.

    If the optimizer averages weights, `evaluate` and `on_result` see the averages.
    """

    def __init__(
        self,
        evaluate: Callable[[Loop], dict[str, float] | None],
        every: int,
        on_result: Callable[[Loop, dict[str, float]], None],
        on_abort: Callable[[Loop], None],
    ) -> None:
        self.evaluate, self.every, self.on_result, self.on_abort = evaluate, every, on_result, on_abort
        self.seconds = 0.0  # of the last evaluation

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        if loop.state.step == 0 or (self.every and loop.state.step % self.every == 0):
            self.run(loop)

    def run(self, loop: Loop) -> None:
        """Evaluate, unless done at this step."""
        loop.flush()  # NOTE: runs the hooks, including this one, which may evaluate
        state, start_time = loop.state, time.monotonic()
        if state.last_eval_step == state.step:
            return
        with use_averages(loop.optimizer):
            results = self.evaluate(loop)
            self.seconds = time.monotonic() - start_time
            state.evaluating += self.seconds
            if results is not None:
                state.last_eval_step = state.step
                state.eval_metrics = {name: value for name, value in results.items() if math.isfinite(value)}
                self.on_result(loop, results)
        if results is None:
            self.on_abort(loop)


def warn_of_few_evaluations(optimizer: Optim, evaluations: int, warn: Callable[[str], None]) -> None:
    """Warn if there are too few evaluations to trigger the averaging of ASGD."""
    if isinstance(optimizer, ASGD) and not optimizer.can_trigger(evaluations):
        warn(
            f"asgd will not average weights: {evaluations} evaluations are too few for its trigger with "
            f"train.optimizer.nonmonotone_interval {optimizer.nonmonotone_interval}; lower train.eval_every"
        )


def build_evaluator(
    batches: HeldOutBatches, count: int, objective: TrainingObjective
) -> Callable[[Loop], dict[str, float] | None]:
    """Return the function that evaluates the current model with the objective's evaluation form."""

    def evaluate(loop: Loop) -> dict[str, float] | None:
        train_objective, loop.module.objective = loop.module.objective, objective
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
            loop.module.objective = train_objective

    return evaluate
