"""How far a run has come: a bar where stderr is a terminal, a plain line now and then where it is not.

    with Progress("bert-mini", total=10_000) as show:
        show(step, loss=3.2, tokens=tokens_so_far, flops=flops_so_far, elapsed=seconds_so_far)

Rates are those of the last half minute; the time that is left follows a smoothed mean. Telling it of every step is
cheap.
"""

import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from pretune.core import log
from pretune.core.format import format_duration, format_number

_LINE_SECONDS = 10.0  # seconds between plain lines
_FRAME_SECONDS = 0.1  # … between changes of the bar
_WINDOW_SECONDS = 30.0  # … that rates are taken over


class OverheadEstimator(Protocol):
    """Work of a run beside its steps: evaluation between them, and what follows the last of them."""

    def get_elapsed(self) -> float:
        """Seconds of such work so far."""

    def estimate_remaining(self, step_seconds: float, step: int) -> float:
        """Seconds of it that are still expected after a step; `pace` is the mean seconds of a step."""


class _ProgressPoint(NamedTuple):
    time: float
    step: int
    tokens: int
    flops: float
    overhead: float  # seconds beside the steps


class Progress:
    """Shows a run of `total` steps, or of `budget` seconds; nothing with --quiet. `peak` FLOPs per second give the MFU.

    Where there is no terminal, `every` asks for a line every so many steps instead of every ten seconds. `outlook`
    adds what is done beside the steps (evaluation, baselines) to the time that is left.
    """

    def __init__(
        self,
        title: str,
        *,
        total: int | None = None,
        budget: float | None = None,
        peak: float | None = None,
        every: int | None = None,
        overhead: OverheadEstimator | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._budget, self._peak, self._every = title, total, budget, peak, every
        self._timer, self._overhead = timer, overhead
        self._step_timer = _StepTimer()
        self._recent_points: deque[_ProgressPoint] = deque()
        self._last_shown: tuple[float, int] | None = None  # when, and which step
        self._bar: Any = None
        self._task: Any = None
        self._exit_stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if not log.is_quiet() and sys.stderr.isatty():
            self._bar = self._exit_stack.enter_context(_build_bar())
            self._task = self._bar.add_task(self._title, total=1.0, words="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit_stack.close()
        self._bar = None

    def __call__(
        self, step: int, *, elapsed: float, tokens: int = 0, flops: float = 0.0, loss: float | None = None
    ) -> None:
        """Steps that are done, and what was counted over all of them, of this run and those it resumed."""
        if log.is_quiet():
            return
        now = self._timer()
        spent = 0.0 if self._overhead is None else self._overhead.get_elapsed()
        if self._recent_points:
            last = self._recent_points[-1]
            self._step_timer.add(step - last.step, now - last.time - (spent - last.overhead))
        self._recent_points.append(_ProgressPoint(now, step, tokens, flops, spent))
        while len(self._recent_points) > 2 and now - self._recent_points[0].time > _WINDOW_SECONDS:
            self._recent_points.popleft()
        if self._is_due(now, step):
            self._last_shown = (now, step)
            self._show(step, elapsed, loss)

    def _is_due(self, timestamp: float, step: int) -> bool:
        if self._last_shown is None or step == self._total:
            return True
        then, before = self._last_shown
        if self._bar is None and self._every:
            return step - before >= self._every
        return timestamp - then >= (_LINE_SECONDS if self._bar is None else _FRAME_SECONDS)

    def _show(self, step: int, elapsed: float, loss: float | None) -> None:
        share, left = self._estimate_remaining(step, elapsed)
        words = self.format_status(step, loss, left)
        if self._bar is not None:
            self._bar.update(self._task, completed=share, words=words)
        else:
            log.info(f"{self._title}: {words}" if self._budget is None else f"{self._title}: {share:.0%}, {words}")

    def format_status(self, step: int, loss: float | None, remaining: float | None) -> str:
        """What is said of a moment."""
        first, last = self._recent_points[0], self._recent_points[-1]
        seconds = last.time - first.time
        found = [f"step {step:,}" + (f"/{self._total:,}" if self._total else "")]
        if loss is not None:
            found.append(f"loss {loss:.4g}")
        if seconds > 0 and last.tokens > first.tokens:
            found.append(f"{format_number((last.tokens - first.tokens) / seconds)} tok/s")
        if seconds > 0 and self._peak and last.flops > first.flops:
            found.append(f"MFU {(last.flops - first.flops) / seconds / self._peak:.0%}")
        if remaining is not None:
            found.append(f"{format_duration(remaining)} left")
        return ", ".join(found)

    def _estimate_remaining(self, step: int, elapsed: float) -> tuple[float, float | None]:
        """The share that is done, and the seconds that are left, where they are known."""
        if self._budget is not None:
            return min(elapsed / self._budget, 1.0), max(self._budget - elapsed, 0.0)
        if self._total is None:
            return 0.0, None
        share, pace = min(step / max(self._total, 1), 1.0), self._step_timer.step_seconds
        if pace is None:
            return share, None
        return share, (self._total - step) * pace + (
            0.0 if self._overhead is None else self._overhead.estimate_remaining(pace, step)
        )


class _StepTimer:
    """Mean seconds of a step, in which older steps lose weight over a third of the run so far, or half a minute."""

    def __init__(self) -> None:
        self._steps = self._seconds = self._total = 0.0

    def add(self, steps: int, seconds: float) -> None:
        self._total += seconds
        kept = math.exp(-seconds / max(_WINDOW_SECONDS, self._total / 3))
        self._steps, self._seconds = self._steps * kept + steps, self._seconds * kept + seconds

    @property
    def step_seconds(self) -> float | None:
        return self._seconds / self._steps if self._steps else None


def _build_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    words = TextColumn("{task.fields[words]}", markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), words)
    return Bar(*columns, console=Console(stderr=True), transient=True)
