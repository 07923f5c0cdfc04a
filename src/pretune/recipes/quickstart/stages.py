"""One display for all of it: which stage is at work, what happens there and why, and how much time is left."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from pretune.core import log
from pretune.train.figures import clock


class Stages:
    """Tells of stages as they come; other messages and bars are hushed while one is at work."""

    def __init__(self, count: int, budget: float) -> None:
        self.count, self.budget = count, budget
        self.begun = time.monotonic()
        self.done: list[dict[str, Any]] = []
        self._kept: list[str] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.begun

    @property
    def left(self) -> float:
        """Seconds of the budget that are left; below 0 when it is spent."""
        return self.budget - self.elapsed

    def late(self, seconds: float, times: float) -> bool:
        """Whether so many more seconds would end after so many times the budget."""
        return self.elapsed + seconds > times * self.budget

    @contextlib.contextmanager
    def stage(self, name: str, about: str) -> Iterator[None]:
        """One stage: a sentence when it begins, its time when it is over."""
        log.say(f"[{len(self.done) + 1}/{self.count}] {name}: {about} ({self._left()})")
        begun = time.monotonic()
        with self._shown(name), hushed():
            yield
        kept, self._kept = self._kept, []
        facts = {"name": name, "seconds": round(time.monotonic() - begun, 1), "about": about}
        self.done.append({**facts, "notes": kept} if kept else facts)

    def tell(self, words: str, *, keep: bool = False) -> None:
        """A line from within a stage; one that is kept stands in the report too."""
        if keep:
            self._kept.append(words)
        with loud():
            log.say(f"      {words} ({self._left()})")

    def _left(self) -> str:
        return f"about {clock(self.left)} left" if self.left > 0 else f"{clock(-self.left)} over the budget"

    @contextlib.contextmanager
    def _shown(self, name: str) -> Iterator[None]:
        """A bar of the whole budget where there is a terminal."""
        if log.is_quiet() or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        spinner, title = Spinner("dots"), Text(f"[{len(self.done) + 1}/{self.count}] {name}")

        def row() -> Table:
            bar = ProgressBar(total=self.budget, completed=min(self.elapsed, self.budget), width=30)
            found = Table.grid(padding=(0, 1))
            found.add_row(spinner, title, bar, Text(self._left()))
            return found

        with Live(get_renderable=row, console=Console(stderr=True), refresh_per_second=5, transient=True):
            yield


_asked_quiet: list[bool] = []


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Nobody else speaks."""
    _asked_quiet.append(log.is_quiet())
    log.set_quiet(True)
    try:
        yield
    finally:
        log.set_quiet(_asked_quiet.pop())


@contextlib.contextmanager
def loud() -> Iterator[None]:
    """Within `hushed`: speak, unless the user asked for quiet."""
    before = log.is_quiet()
    log.set_quiet(_asked_quiet[0] if _asked_quiet else before)
    try:
        yield
    finally:
        log.set_quiet(before)
