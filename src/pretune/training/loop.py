"""The one training loop: pre-training, fine-tuning and distillation are values and hooks of it.

A step reads its micro-batches, adds up their gradients, each loss divided by the count of the whole step, and changes
the weights unless the gradient is not finite. Nothing in it makes the host wait for the device: whether a step counts
is decided there, and the host reads it a step later.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pretune.core.errors import ResourceError
from pretune.core.seed import mix
from pretune.core.types import Batch, Loss
from pretune.training.accumulate import increase_micro_batches, reduce_over_ranks, sum_step_counts
from pretune.training.async_metrics import REDUCED_METRICS, MetricBuffer, StepMetrics
from pretune.training.batch_stats import BatchStats
from pretune.training.cuda_graph import CudaGraphRunner
from pretune.training.distributed import Ranks
from pretune.training.loss_module import ModelWithLoss
from pretune.training.optim import clip_gradients, set_rates, step_if
from pretune.training.train_state import TrainState

DROPOUT = 11
"""The purpose of the numbers that dropout draws; those of the data count from 1. NOTE: a change changes every run."""


class Batches(Protocol):
    """Where a step's micro-batches come from."""

    wait_seconds: float

    @property
    def stats(self) -> BatchStats:
        """What the last step was made of."""

    def __next__(self) -> Sequence[Batch]: ...

    def split(self, micro: int) -> None:
        """Go on from the step that was given last, in so many micro-batches."""


class Hook(Protocol):
    """What happens after steps: watching, logging, evaluating, saving, unfreezing. It may raise to end the run."""

    def __call__(self, loop: "Loop", metrics: Sequence[StepMetrics]) -> None:
        """After every step, with what is known of steps since the last call."""


@dataclass(slots=True, kw_only=True)
class Loop:
    """Everything a step needs."""

    module: ModelWithLoss
    optimizer: Optimizer
    batches: Batches
    state: TrainState
    ranks: Ranks
    lr_factor: Callable[[TrainState], float]  # the factor of every group's learning rate
    should_stop: Callable[[TrainState], bool]
    hooks: Sequence[Hook] = ()
    seed: int = 0
    clip: float | None = 1.0
    precision: torch.dtype | None = None  # of autocast
    parallel_module: nn.Module | None = (
        None  # the trainee, spread over devices; None: gradients are averaged after the pass
    )
    graph_runner: CudaGraphRunner | None = None  # of passes whose kernels are not worth starting one by one
    metric_buffer: MetricBuffer | None = None
    stop_signal: int = 0  # a signal that asks this rank to stop
    start_time: float = field(default_factory=time.monotonic)  # less the time of earlier processes

    def run(self) -> TrainState:
        """Take steps until it is time to end; all that was reported late is given to the hooks."""
        self.metric_buffer = self.metric_buffer or MetricBuffer(self.ranks.device)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        while not self.should_stop(self.state):
            set_rates(self.optimizer, self.lr_factor(self.state))
            batches = next(self.batches)
            told = sum_step_counts(
                self.module.objective,
                batches,
                self.ranks,
                stop_signal=self.stop_signal,
                elapsed=time.monotonic() - self.start_time,
            )
            losses = self._compute_gradients(batches, told)
            if self.parallel_module is None:
                self.ranks.average_gradients(parameters)
            norm = clip_gradients(parameters, self.clip)
            ok = torch.isfinite(norm) & torch.isfinite(losses.mean())
            step_if(self.optimizer, ok)
            self.optimizer.zero_grad(set_to_none=True)
            self._record(losses, ok, norm, told)
            self.state.step += 1
            self._run_hooks([*self.metric_buffer.take()])
        self.flush()
        return self.state

    def flush(self) -> None:
        """Wait for the device, and hear what is still unread."""
        reports = [*self.metric_buffer.take(include_newest=True)] if self.metric_buffer else []
        if reports:
            self._run_hooks(reports)

    def _run_hooks(self, metrics: Sequence[StepMetrics]) -> None:
        for report in metrics:
            self.state.tokens += report.tokens
            self.state.elapsed = report.elapsed
        for hook in self.hooks:
            hook(self, metrics)

    def _compute_gradients(self, batches: Sequence[Batch], counts: Mapping[str, Tensor]) -> Loss:
        """Forward and backward of a step, with half the micro-batch where memory does not suffice."""
        while True:
            try:
                return self._accumulate(batches, counts)
            except torch.OutOfMemoryError:
                if self.ranks.world > 1 or batches[0].rows == 1:
                    raise ResourceError(
                        f"out of memory with micro-batches of {batches[0].rows} x {batches[0].length} tokens; "
                        "lower train.batch_tokens or data.max_length, or set train.recompute=true"
                    ) from None
            # NOTE: outside the handler, whose traceback holds the activations.
            self.optimizer.zero_grad(set_to_none=True)
            gc.collect()
            torch.cuda.empty_cache()
            self.state.micro = self.state.least = increase_micro_batches(self.state.micro, batches[0].rows)
            self.batches.split(self.state.micro)
            batches = next(self.batches)

    def _accumulate(self, batches: Sequence[Batch], counts: Mapping[str, Tensor]) -> Loss:
        summed: Loss | None = None
        alone = self.graph_runner if len(batches) == 1 else None  # what is replayed does not add to gradients
        for number, batch in enumerate(batches):
            self.ranks.seed(mix(self.seed, DROPOUT, self.state.step, self.ranks.rank, number) >> 1)
            with self.ranks.delay_gradient_sync(
                self.parallel_module or self.module, is_last=number == len(batches) - 1
            ):
                loss = alone(self._forward_backward, batch, counts) if alone else self._forward_backward(batch, counts)
            summed = loss if summed is None else summed + loss
        assert summed is not None
        return reduce_over_ranks(summed, self.ranks)

    def _forward_backward(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Forward and backward of a micro-batch."""
        module = self.parallel_module or self.module
        with torch.autocast(self.ranks.device.type, self.precision, enabled=self.precision is not None):
            loss: Loss = module(batch)
        # The wrappers average over ranks; we want their sum.
        (loss.normalize(counts) * self.ranks.world).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _record(self, loss: Loss, ok: Tensor, norm: Tensor, counts: Mapping[str, Tensor]) -> None:
        assert self.metric_buffer is not None
        pairs = [value for term in loss.get_terms().values() for value in (term.sum, term.count)]
        values = torch.stack(
            [value.double() for value in (ok, norm, *(counts[name] for name in REDUCED_METRICS), *pairs)]
        )
        weights = {name: term.weight for name, term in loss.get_terms().items()}
        self.metric_buffer.put(self.state.step, self.optimizer.param_groups[0]["lr"], weights, values)
