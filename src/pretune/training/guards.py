"""Watching over a run: steps that are not finite, losses that leap, and signals that ask it to stop."""

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
from pretune.training.async_metrics import StepMetrics
from pretune.training.loop import Loop

MAX_SKIPPED_STEPS = 20
"""So many steps in a row without a finite gradient end a run."""
_RECENT_STEPS, _MIN_STEPS, _SPIKE_FACTOR = 100, 20, 8.0


class DivergenceGuard:
    """Counts what was skipped, ends a run that diverges, and flags losses far above the recent ones.

    A leap is a loss more than eight times the usual distance (the median one) above the median of the last hundred.
    """

    def __init__(self, warn: Callable[[str], None], samples: Callable[[int], Sequence[int]] | None = None) -> None:
        self.warn, self.samples = warn, samples
        self.spikes: list[int] = []
        self._recent_losses: deque[float] = deque(maxlen=_RECENT_STEPS)

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        for report in metrics:
            if report.ok:
                loop.state.in_a_row = 0
                self._check_loss(report)
                continue
            loop.state.skipped += 1
            loop.state.in_a_row += 1
            self.warn(
                f"step {report.step}: the gradient is not finite, step skipped{self._format_samples(report.step)}"
            )
            if loop.state.in_a_row >= MAX_SKIPPED_STEPS:
                raise DivergedError(
                    f"{MAX_SKIPPED_STEPS} steps in a row, up to step {report.step}, had no finite gradient; go back to an "
                    "earlier checkpoint with a lower train.lr, or look at the data of these steps"
                )

    def _check_loss(self, metrics: StepMetrics) -> None:
        if len(self._recent_losses) >= _MIN_STEPS:
            middle = statistics.median(self._recent_losses)
            usual = statistics.median(abs(loss - middle) for loss in self._recent_losses)
            if metrics.loss > middle + _SPIKE_FACTOR * max(usual, 1e-3 * abs(middle)):
                self.spikes.append(metrics.step)
                self.warn(
                    f"step {metrics.step}: the loss leaps to {metrics.loss:.4g} (median of the last {len(self._recent_losses)}: "
                    f"{middle:.4g}){self._format_samples(metrics.step)}"
                )
        if math.isfinite(metrics.loss):
            self._recent_losses.append(metrics.loss)

    def _format_samples(self, step: int) -> str:
        if self.samples is None:
            return ""
        ids = [str(number) for number in self.samples(step)]
        more = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
        return f"; samples {', '.join(ids[:8])}{more}"


class GracefulShutdown:
    """Asked to stop by a signal: the step at hand is finished, its state saved, and the run ends with its exit code.

    SIGTERM, as schedulers send it, ends with 75; Ctrl-C with 130, and a second Ctrl-C at once. With several ranks all
    of them stop at the same step: the request travels with a step's counts. Before a run is `arm` there is nothing to
    save, and it ends at once.
    """

    def __init__(self, resume_hint: str, *, has_checkpoint: bool = False) -> None:
        self.resume_hint, self.has_checkpoint = (
            resume_hint,
            has_checkpoint,
        )  # how to go on, and whether there is something to go on with
        self._loop: Loop | None = None
        self._save: Callable[[Loop], None] | None = None

    def arm(self, loop: Loop, save: Callable[[Loop], None]) -> None:
        """From now on there is something to save."""
        self._loop, self._save = loop, save

    def disarm(self) -> None:
        """All there was is saved: being asked to stop, also since the last step, ends the run at once."""
        asked, self.has_checkpoint = self._loop.stop_signal if self._loop else 0, True
        self._loop = self._save = None  # they hold all that was trained
        if asked:
            raise self._build_error(asked, f"; {self.resume_hint}")

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        if loop.stop_signal if loop.ranks.world == 1 else any(report.stop_requested for report in metrics):
            self.stop(loop)

    def stop(self, loop: Loop) -> None:
        """Save, and raise what ends the run."""
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
            how = f"; {self.resume_hint}" if self.has_checkpoint else " before there was anything to save"
            raise StopRequest(self._build_error(number, how))
        if number == signal.SIGINT and self._loop.stop_signal:
            raise KeyboardInterrupt
        self._loop.stop_signal = number
        # NOTE: not print, which may be in the middle of a line of its own.
        os.write(2, b"pretune: finishing this step and saving; press Ctrl-C again to stop at once\n")

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """While the block runs, SIGTERM and Ctrl-C are requests."""
        if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
            yield
            return
        before: dict[int, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, self._handle_signal)
        try:
            yield
        except StopRequest as request:
            raise request.error from None
        finally:
            for asked, handler in before.items():
                signal.signal(asked, handler)
