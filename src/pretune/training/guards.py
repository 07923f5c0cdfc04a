"""Guards of a run: non-finite gradients, loss spikes, and shutdown on SIGTERM or Ctrl-C."""

import math
import os
import signal
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pretune.core.errors import DivergedError, PretuneError, StoppedError, StopRequest, UserInterruptError
from pretune.training.loop import Loop
from pretune.training.step import StepMetrics

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
        raise self._build_error(
            loop.stop_signal or signal.SIGTERM, f" after step {loop.state.step}; {self.resume_hint}"
        )

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
        os.write(2, b"pretune: finishing this step and saving; press Ctrl-C again to stop immediately\n")

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle SIGTERM and Ctrl-C as stop requests inside the block."""
        if threading.current_thread() is not threading.main_thread():  # Python handles signals only there
            yield
            return
        previous_handlers: dict[int, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            previous_handlers[number] = signal.signal(number, self._handle_signal)
        try:
            yield
        except StopRequest as request:
            raise request.error from None
        finally:
            for signal_number, handler in previous_handlers.items():
                signal.signal(signal_number, handler)
