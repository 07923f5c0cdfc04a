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
from pretune.core.format import amount, clock

_LINES = 10.0  # seconds between plain lines
_FRAMES = 0.1  # … between changes of the bar
_WINDOW = 30.0  # … that rates are taken over


class Outlook(Protocol):
    """Work of a run beside its steps: evaluation between them, and what follows the last of them."""

    def spent(self) -> float:
        """Seconds of such work so far."""

    def ahead(self, pace: float, step: int) -> float:
        """Seconds of it that are still expected after a step; `pace` is the mean seconds of a step."""


class _Moment(NamedTuple):
    time: float
    step: int
    tokens: int
    flops: float
    spent: float  # seconds beside the steps


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
        outlook: Outlook | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._budget, self._peak, self._every = title, total, budget, peak, every
        self._now, self._outlook = now, outlook
        self._pace = _Pace()
        self._recent: deque[_Moment] = deque()
        self._shown: tuple[float, int] | None = None  # when, and which step
        self._bar: Any = None
        self._task: Any = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if not log.is_quiet() and sys.stderr.isatty():
            self._bar = self._open.enter_context(_bar())
            self._task = self._bar.add_task(self._title, total=1.0, words="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        self._bar = None

    def __call__(
        self, step: int, *, elapsed: float, tokens: int = 0, flops: float = 0.0, loss: float | None = None
    ) -> None:
        """Steps that are done, and what was counted over all of them, of this run and those it resumed."""
        if log.is_quiet():
            return
        now = self._now()
        spent = 0.0 if self._outlook is None else self._outlook.spent()
        if self._recent:
            last = self._recent[-1]
            self._pace.add(step - last.step, now - last.time - (spent - last.spent))
        self._recent.append(_Moment(now, step, tokens, flops, spent))
        while len(self._recent) > 2 and now - self._recent[0].time > _WINDOW:
            self._recent.popleft()
        if self._due(now, step):
            self._shown = (now, step)
            self._show(step, elapsed, loss)

    def _due(self, now: float, step: int) -> bool:
        if self._shown is None or step == self._total:
            return True
        then, before = self._shown
        if self._bar is None and self._every:
            return step - before >= self._every
        return now - then >= (_LINES if self._bar is None else _FRAMES)

    def _show(self, step: int, elapsed: float, loss: float | None) -> None:
        share, left = self._ahead(step, elapsed)
        words = self.words(step, loss, left)
        if self._bar is not None:
            self._bar.update(self._task, completed=share, words=words)
        else:
            log.say(f"{self._title}: {words}" if self._budget is None else f"{self._title}: {share:.0%}, {words}")

    def words(self, step: int, loss: float | None, left: float | None) -> str:
        """What is said of a moment."""
        first, last = self._recent[0], self._recent[-1]
        seconds = last.time - first.time
        found = [f"step {step:,}" + (f"/{self._total:,}" if self._total else "")]
        if loss is not None:
            found.append(f"loss {loss:.4g}")
        if seconds > 0 and last.tokens > first.tokens:
            found.append(f"{amount((last.tokens - first.tokens) / seconds)} tok/s")
        if seconds > 0 and self._peak and last.flops > first.flops:
            found.append(f"MFU {(last.flops - first.flops) / seconds / self._peak:.0%}")
        if left is not None:
            found.append(f"{clock(left)} left")
        return ", ".join(found)

    def _ahead(self, step: int, elapsed: float) -> tuple[float, float | None]:
        """The share that is done, and the seconds that are left, where they are known."""
        if self._budget is not None:
            return min(elapsed / self._budget, 1.0), max(self._budget - elapsed, 0.0)
        if self._total is None:
            return 0.0, None
        share, pace = min(step / max(self._total, 1), 1.0), self._pace.seconds
        if pace is None:
            return share, None
        return share, (self._total - step) * pace + (0.0 if self._outlook is None else self._outlook.ahead(pace, step))


class _Pace:
    """Mean seconds of a step, in which older steps lose weight over a third of the run so far, or half a minute."""

    def __init__(self) -> None:
        self._steps = self._seconds = self._total = 0.0

    def add(self, steps: int, seconds: float) -> None:
        self._total += seconds
        kept = math.exp(-seconds / max(_WINDOW, self._total / 3))
        self._steps, self._seconds = self._steps * kept + steps, self._seconds * kept + seconds

    @property
    def seconds(self) -> float | None:
        return self._seconds / self._steps if self._steps else None


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    words = TextColumn("{task.fields[words]}", markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), words)
    return Bar(*columns, console=Console(stderr=True), transient=True)
