"""The training loop of pre-training, fine-tuning and distillation, which differ only in its arguments and hooks.

A step accumulates the gradients of its micro-batches, each loss divided by the target count of the whole step, and
updates the weights unless the gradient is not finite. The host never synchronizes with the device: the device decides
whether to apply the update, and the host reads the metrics one step late.
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
from pretune.training.batch_transfer import BatchStats
from pretune.training.cuda_graph import CudaGraphRunner
from pretune.training.distributed import Ranks
from pretune.training.optim import clip_gradients, set_rates, step_if
from pretune.training.step import (
    REDUCED_METRICS,
    MetricBuffer,
    ModelWithLoss,
    StepMetrics,
    TrainState,
    increase_micro_batches,
    reduce_over_ranks,
    sum_step_counts,
)

DROPOUT = 11
"""Stream id of dropout's random seed; those of the data count from 1. NOTE: a change changes every run."""


class Batches(Protocol):
    """Iterator over the micro-batches of each step."""

    wait_seconds: float

    @property
    def stats(self) -> BatchStats:
        """Token counts of the last step."""

    def __next__(self) -> Sequence[Batch]: ...

    def split(self, micro: int) -> None:
        """Continue from the last returned step, split into `micro` micro-batches."""


class Hook(Protocol):
    """Callback after each step: checks, logging, evaluation, saving, unfreezing. May raise to end the run."""

    def __call__(self, loop: "Loop", metrics: Sequence[StepMetrics]) -> None:
        """Handle the metrics of the steps since the last call."""


@dataclass(slots=True, kw_only=True)
class Loop:
    """State and components of a training run."""

    module: ModelWithLoss
    optimizer: Optimizer
    state: TrainState
    ranks: Ranks
    lr_factor: Callable[[TrainState], float]  # the factor of every group's learning rate
    hooks: Sequence[Hook] = ()
    seed: int = 0
    clip: float | None = 1.0
    precision: torch.dtype | None = None  # of autocast
    parallel_module: nn.Module | None = None  # DDP or FSDP wrapper; None: gradients are averaged after the backward
    graph_runner: CudaGraphRunner | None = None  # for models too small to launch kernels one by one
    batches: Batches = field(init=False)  # of the current run of the loop
    metric_buffer: MetricBuffer | None = None
    stop_signal: int = 0  # number of the signal this rank received
    start_time: float = field(default_factory=time.monotonic)  # minus the seconds of earlier processes

    def run(self, batches: Batches, should_stop: Callable[[TrainState], bool]) -> TrainState:
        """Train on batches until `should_stop`, asked before every step; pass the remaining metrics to the hooks."""
        self.batches = batches
        self.metric_buffer = self.metric_buffer or MetricBuffer(self.ranks.device)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        while not should_stop(self.state):
            set_rates(self.optimizer, self.lr_factor(self.state))
            micro_batches = next(batches)
            step_counts = sum_step_counts(
                self.module.objective,
                micro_batches,
                self.ranks,
                stop_signal=self.stop_signal,
                elapsed_seconds=time.monotonic() - self.start_time,
            )
            losses = self._compute_gradients(micro_batches, step_counts)
            if self.parallel_module is None:
                self.ranks.average_gradients(parameters)
            norm = clip_gradients(parameters, self.clip)
            ok = torch.isfinite(norm) & torch.isfinite(losses.mean())
            step_if(self.optimizer, ok)
            self.optimizer.zero_grad(set_to_none=True)
            self._record(losses, ok, norm, step_counts)
            self.state.step += 1
            self._run_hooks([*self.metric_buffer.take()])
        self.flush()
        return self.state

    def flush(self) -> None:
        """Wait for the device, and pass all pending metrics to the hooks."""
        metrics = [*self.metric_buffer.take(include_newest=True)] if self.metric_buffer else []
        if metrics:
            self._run_hooks(metrics)

    def _run_hooks(self, metrics: Sequence[StepMetrics]) -> None:
        for step_metrics in metrics:
            self.state.tokens += step_metrics.tokens
            self.state.elapsed_seconds = step_metrics.elapsed_seconds
        for hook in self.hooks:
            hook(self, metrics)

    def _compute_gradients(self, batches: Sequence[Batch], counts: Mapping[str, Tensor]) -> Loss:
        """Run forward and backward of a step; on out of memory, retry with smaller micro-batches."""
        while True:
            try:
                return self._accumulate(batches, counts)
            except torch.OutOfMemoryError:
                if self.ranks.world > 1 or batches[0].rows == 1:
                    raise ResourceError(
                        f"out of memory with micro-batches of {batches[0].rows} x {batches[0].length} tokens; "
                        "lower train.batch_tokens or data.max_length, or set train.activation_checkpointing=true"
                    ) from None
            # NOTE: outside the handler, whose traceback holds the activations.
            self.optimizer.zero_grad(set_to_none=True)
            gc.collect()
            torch.cuda.empty_cache()
            self.state.micro = self.state.min_micro = increase_micro_batches(self.state.micro, batches[0].rows)
            self.batches.split(self.state.micro)
            batches = next(self.batches)

    def _accumulate(self, batches: Sequence[Batch], counts: Mapping[str, Tensor]) -> Loss:
        total: Loss | None = None
        # Replaying a graph overwrites gradients, so accumulation runs eagerly.
        graph_runner = self.graph_runner if len(batches) == 1 else None
        for number, batch in enumerate(batches):
            self.ranks.seed(mix(self.seed, DROPOUT, self.state.step, self.ranks.rank, number) >> 1)
            with self.ranks.delay_gradient_sync(
                self.parallel_module or self.module, is_last=number == len(batches) - 1
            ):
                loss = (
                    graph_runner(self._forward_backward, batch, counts)
                    if graph_runner
                    else self._forward_backward(batch, counts)
                )
            total = loss if total is None else total + loss
        assert total is not None
        return reduce_over_ranks(total, self.ranks)

    def _forward_backward(self, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Run forward and backward of a micro-batch."""
        module = self.parallel_module or self.module
        with torch.autocast(self.ranks.device.type, self.precision, enabled=self.precision is not None):
            loss: Loss = module(batch)
        # The wrappers average over ranks; we need the sum.
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
