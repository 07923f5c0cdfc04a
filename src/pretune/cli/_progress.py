"""How far long work has come: a bar where stderr is a terminal, a plain line now and then where it is not."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from pretune.core import log

_SECONDS_BETWEEN_LINES = 10.0  # seconds between plain lines

ProgressReporter = Callable[[float, str], None]
"""Told the share that is done (0 to 1), and a few words on what and how fast."""


@contextlib.contextmanager
def show_progress(title: str) -> Iterator[ProgressReporter]:
    """Show progress while the block runs; nothing with --quiet."""
    if log.is_quiet():
        yield lambda share, words: None
    elif sys.stderr.isatty():
        with _show_bar(title) as tell:
            yield tell
    else:
        yield _build_line_reporter(title)


def _build_line_reporter(title: str) -> ProgressReporter:
    begun = last = time.monotonic()

    def tell(share: float, words: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _SECONDS_BETWEEN_LINES:
            return
        last = now
        left = f", {_format_clock((now - begun) * (1 - share) / share)} left" if 0 < share <= 1 else ""
        log.info(f"{title}: {share:.0%}, {words}{left}")

    return tell


@contextlib.contextmanager
def _show_bar(title: str) -> Iterator[ProgressReporter]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%  {task.fields[words]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(log.escape(title), total=1.0, words="")
        yield lambda share, words: bar.update(task, completed=share, words=log.escape(words))


def _format_clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
