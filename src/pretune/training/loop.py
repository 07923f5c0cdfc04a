"""The training loop of pre-training, fine-tuning and distillation, which differ only in its arguments and hooks.

A step accumulates the gradients of its micro-batches, each loss divided by the target count of the whole step, and
updates the weights unless the gradient is not finite. The host never synchronizes with the device: the device decides
whether to apply the update, and the host reads the metrics one step late.

Two hooks guard a run: `DivergenceGuard` against non-finite gradients and loss spikes, `GracefulShutdown` saves a
checkpoint on SIGTERM or Ctrl-C.
"""

import gc
import math
import os
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pretune.core.errors import (
    DivergedError,
    PretuneError,
    ResourceError,
    StoppedError,
    StopRequest,
    UserInterruptError,
)
from pretune.core.seed import mix
from pretune.core.types import Batch, Loss
from pretune.training.batch_transfer import BatchStats
from pretune.training.cuda_graph import CudaGraphRunner, PassFunction
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
    window: int = 0  # base length of the windows of contiguous streams
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
            micro_batches = next(batches)
            set_rates(self.optimizer, self.lr_factor(self.state) * self._compute_window_factor(micro_batches[0]))
            objective, elapsed_seconds = self.module.objective, time.monotonic() - self.start_time
            step_counts = sum_step_counts(objective, micro_batches, self.ranks, self.stop_signal, elapsed_seconds)
            losses = self._compute_gradients(micro_batches, step_counts)
            if self.parallel_module is None:
                self.ranks.average_gradients(parameters)
            norm = clip_gradients(parameters, self.clip)
            ok = torch.isfinite(norm) & torch.isfinite(losses.mean())
            step_if(self.optimizer, ok)
            self.module.stream_state.finish_step(ok)
            self.optimizer.zero_grad(set_to_none=True)
            self._record(losses, ok, norm, step_counts)
            self.state.step += 1
            self._run_hooks([*self.metric_buffer.take()])
        self.flush()
        return self.state

    def _compute_window_factor(self, batch: Batch) -> float:
        """Return the factor of the rate for the length of a window (Merity et al., 2018, section 5)."""
        return 1.0 if batch.continues is None else batch.length / self.window

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
            self.module.stream_state.restart_step()
            self.optimizer.zero_grad(set_to_none=True)
            gc.collect()
            torch.cuda.empty_cache()
            self.state.micro = self.state.min_micro = increase_micro_batches(self.state.micro, batches[0].rows)
            self.batches.split(self.state.micro)
            batches = next(self.batches)

    def _accumulate(self, batches: Sequence[Batch], counts: Mapping[str, Tensor]) -> Loss:
        total: Loss | None = None
        forward_backward: PassFunction = self._forward_backward
        if self.graph_runner is not None and len(batches) == 1:  # NOTE: replaying a graph overwrites gradients
            forward_backward = partial(self.graph_runner, forward_backward)
        for number, batch in enumerate(batches):
            self.ranks.seed(mix(self.seed, DROPOUT, self.state.step, self.ranks.rank, number) >> 1)
            is_last = number == len(batches) - 1
            with self.ranks.delay_gradient_sync(self.parallel_module or self.module, is_last=is_last):
                loss = forward_backward(batch, counts)
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
        values = [value.double() for value in (ok, norm, *(counts[name] for name in REDUCED_METRICS), *pairs)]
        weights = {name: term.weight for name, term in loss.get_terms().items()}
        rate = self.optimizer.param_groups[0]["lr"]
        self.metric_buffer.put(self.state.step, rate, weights, torch.stack(values))


MAX_SKIPPED_STEPS = 20
"""A run ends after this many consecutive steps without a finite gradient."""
_RECENT_STEPS, _MIN_STEPS, _SPIKE_FACTOR = 100, 20, 8.0


class DivergenceGuard:
    """Counts skipped steps, ends a diverging run, and warns about loss spikes.

    A spike is a loss more than eight median absolute deviations above the median of the last hundred losses.
    """

    def __init__(self, warn: Callable[[str], None], samples: Callable[[int], Sequence[int]] | None = None) -> None:
        self.warn, self.samples = warn, samples
        self.spikes: list[int] = []
        self._recent_losses: deque[float] = deque(maxlen=_RECENT_STEPS)

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        for step_metrics in metrics:
            if step_metrics.ok:
                loop.state.consecutive_skips = 0
                self._check_loss(step_metrics)
                continue
            loop.state.skipped_steps += 1
            loop.state.consecutive_skips += 1
            self.warn(
                f"step {step_metrics.step}: non-finite gradient, step skipped{self._format_samples(step_metrics.step)}"
            )
            if loop.state.consecutive_skips >= MAX_SKIPPED_STEPS:
                raise DivergedError(
                    f"{MAX_SKIPPED_STEPS} consecutive steps up to {step_metrics.step} had no finite gradient; resume "
                    "from an earlier checkpoint with a lower train.lr, or check the data of these steps"
                )

    def _check_loss(self, metrics: StepMetrics) -> None:
        if len(self._recent_losses) >= _MIN_STEPS:
            median = statistics.median(self._recent_losses)
            deviation = statistics.median(abs(loss - median) for loss in self._recent_losses)
            if metrics.loss > median + _SPIKE_FACTOR * max(deviation, 1e-3 * abs(median)):
                self.spikes.append(metrics.step)
                self.warn(
                    f"step {metrics.step}: loss spike: {metrics.loss:.4g} (median of the last "
                    f"{len(self._recent_losses)}: {median:.4g}){self._format_samples(metrics.step)}"
                )
        if math.isfinite(metrics.loss):
            self._recent_losses.append(metrics.loss)

    def _format_samples(self, step: int) -> str:
        if self.samples is None:
            return ""
        ids = [str(number) for number in self.samples(step)]
        suffix = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
        return f"; samples {', '.join(ids[:8])}{suffix}"


class GracefulShutdown:
    """Shutdown on a signal: finish the current step, save a checkpoint, and exit with the code of the signal.

    SIGTERM, as sent by schedulers, exits with 75; Ctrl-C with 130; a second Ctrl-C stops immediately. With several
    ranks all stop at the same step: the request is reduced with the counts of a step. Before `arm` there is nothing to
    save, and the run ends immediately.
    """

    def __init__(self, resume_hint: str, *, has_checkpoint: bool = False) -> None:
        self.resume_hint, self.has_checkpoint = resume_hint, has_checkpoint
        self._loop: Loop | None = None
        self._save: Callable[[Loop], None] | None = None

    def arm(self, loop: Loop, save: Callable[[Loop], None]) -> None:
        """Save a checkpoint on later signals."""
        self._loop, self._save = loop, save

    def disarm(self) -> None:
        """Stop immediately on later signals, since everything is saved; raises if a signal is already pending."""
        signal_number, self.has_checkpoint = self._loop.stop_signal if self._loop else 0, True
        self._loop = self._save = None  # they hold the model and the optimizer
        if signal_number:
            raise self._build_error(signal_number, f"; {self.resume_hint}")

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        if loop.stop_signal if loop.ranks.world == 1 else any(step_metrics.stop_requested for step_metrics in metrics):
            self.stop(loop)

    def stop(self, loop: Loop) -> None:
        """Save a checkpoint, and raise the error that ends the run."""
        assert self._save is not None
        self._save(loop)
        detail = f" after step {loop.state.step}; {self.resume_hint}"
        raise self._build_error(loop.stop_signal or signal.SIGTERM, detail)

    def _build_error(self, number: int, detail: str) -> PretuneError:
        kind = UserInterruptError if number == signal.SIGINT else StoppedError
        return kind(f"stopped by {signal.Signals(number).name}{detail}")

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None:
            detail = f"; {self.resume_hint}" if self.has_checkpoint else " before the first checkpoint"
            raise StopRequest(self._build_error(number, detail))
        if number == signal.SIGINT and self._loop.stop_signal:
            raise KeyboardInterrupt
        self._loop.stop_signal = number
        # NOTE: not print: the signal may arrive in the middle of another print.
        hint = b"; press Ctrl-C again to stop immediately" if number == signal.SIGINT else b""
        os.write(2, b"pretune: finishing this step and saving" + hint + b"\n")

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle SIGTERM and Ctrl-C as stop requests inside the block."""
        if threading.current_thread() is not threading.main_thread():  # Python handles signals only there
            yield
            return
        previous_handlers = {n: signal.signal(n, self._handle_signal) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        except StopRequest as request:
            raise request.error from None
        finally:
            for signal_number, handler in previous_handlers.items():
                signal.signal(signal_number, handler)
