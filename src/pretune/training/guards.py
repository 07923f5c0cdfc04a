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

from pretune.core.errors import DivergedError, Interrupted, PretuneError, Stopped, StopRequest
from pretune.training.async_metrics import Report
from pretune.training.loop import Loop

MOST_SKIPPED = 20
"""So many steps in a row without a finite gradient end a run."""
_RECENT, _LEAST, _LEAP = 100, 20, 8.0


class Watch:
    """Counts what was skipped, ends a run that diverges, and flags losses far above the recent ones.

    A leap is a loss more than eight times the usual distance (the median one) above the median of the last hundred.
    """

    def __init__(self, note: Callable[[str], None], samples: Callable[[int], Sequence[int]] | None = None) -> None:
        self.note, self.samples = note, samples
        self.leaps: list[int] = []
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def __call__(self, loop: Loop, reports: Sequence[Report]) -> None:
        for report in reports:
            if report.ok:
                loop.state.in_a_row = 0
                self._judge(report)
                continue
            loop.state.skipped += 1
            loop.state.in_a_row += 1
            self.note(f"step {report.step}: the gradient is not finite, step skipped{self._named(report.step)}")
            if loop.state.in_a_row >= MOST_SKIPPED:
                raise DivergedError(
                    f"{MOST_SKIPPED} steps in a row, up to step {report.step}, had no finite gradient; go back to an "
                    "earlier checkpoint with a lower train.lr, or look at the data of these steps"
                )

    def _judge(self, report: Report) -> None:
        if len(self._recent) >= _LEAST:
            middle = statistics.median(self._recent)
            usual = statistics.median(abs(loss - middle) for loss in self._recent)
            if report.loss > middle + _LEAP * max(usual, 1e-3 * abs(middle)):
                self.leaps.append(report.step)
                self.note(
                    f"step {report.step}: the loss leaps to {report.loss:.4g} (median of the last {len(self._recent)}: "
                    f"{middle:.4g}){self._named(report.step)}"
                )
        if math.isfinite(report.loss):
            self._recent.append(report.loss)

    def _named(self, step: int) -> str:
        if self.samples is None:
            return ""
        ids = [str(number) for number in self.samples(step)]
        more = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
        return f"; samples {', '.join(ids[:8])}{more}"


class Stop:
    """Asked to stop by a signal: the step at hand is finished, its state saved, and the run ends with its exit code.

    SIGTERM, as schedulers send it, ends with 75; Ctrl-C with 130, and a second Ctrl-C at once. With several ranks all
    of them stop at the same step: the request travels with a step's counts. Before a run is `ready` there is nothing to
    save, and it ends at once.
    """

    def __init__(self, again: str, *, begun: bool = False) -> None:
        self.again, self.begun = again, begun  # how to go on, and whether there is something to go on with
        self._loop: Loop | None = None
        self._save: Callable[[Loop], None] | None = None

    def ready(self, loop: Loop, save: Callable[[Loop], None]) -> None:
        """From now on there is something to save."""
        self._loop, self._save = loop, save

    def rest(self) -> None:
        """All there was is saved: being asked to stop, also since the last step, ends the run at once."""
        asked, self.begun = self._loop.asked if self._loop else 0, True
        self._loop = self._save = None  # they hold all that was trained
        if asked:
            raise self._error(asked, f"; {self.again}")

    def __call__(self, loop: Loop, reports: Sequence[Report]) -> None:
        if loop.asked if loop.ranks.world == 1 else any(report.asked for report in reports):
            self.end(loop)

    def end(self, loop: Loop) -> None:
        """Save, and raise what ends the run."""
        assert self._save is not None
        self._save(loop)
        raise self._error(loop.asked or signal.SIGTERM, f" after step {loop.state.step}; {self.again}")

    def _error(self, number: int, how: str) -> PretuneError:
        kind = Interrupted if number == signal.SIGINT else Stopped
        return kind(f"stopped by {signal.Signals(number).name}{how}")

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None:
            how = f"; {self.again}" if self.begun else " before there was anything to save"
            raise StopRequest(self._error(number, how))
        if number == signal.SIGINT and self._loop.asked:
            raise KeyboardInterrupt
        self._loop.asked = number
        # NOTE: not print, which may be in the middle of a line of its own.
        os.write(2, b"pretune: finishing this step and saving; press Ctrl-C again to stop at once\n")

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While the block runs, SIGTERM and Ctrl-C are requests."""
        if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
            yield
            return
        before: dict[int, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, self._ask)
        try:
            yield
        except StopRequest as request:
            raise request.error from None
        finally:
            for asked, handler in before.items():
                signal.signal(asked, handler)
