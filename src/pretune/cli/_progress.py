"""Progress of long operations: a bar where stderr is a terminal, otherwise a line every 10 seconds."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from pretune.core import log

_SECONDS_BETWEEN_LINES = 10.0  # seconds between plain lines

ProgressReporter = Callable[[float, str], None]
"""Callback with the finished share (0 to 1) and a short description, such as the rate."""


@contextlib.contextmanager
def show_progress(title: str) -> Iterator[ProgressReporter]:
    """Show progress while the block runs; nothing with --quiet."""
    if log.is_quiet():
        yield lambda share, words: None
    elif sys.stderr.isatty():
        with _show_bar(title) as report:
            yield report
    else:
        yield _build_line_reporter(title)


def _build_line_reporter(title: str) -> ProgressReporter:
    start = last = time.monotonic()

    def report(share: float, words: str) -> None:
        nonlocal last
        timestamp = time.monotonic()
        if timestamp - last < _SECONDS_BETWEEN_LINES:
            return
        last = timestamp
        remaining = f", {_format_clock((timestamp - start) * (1 - share) / share)} left" if 0 < share <= 1 else ""
        log.info(f"{title}: {share:.0%}, {words}{remaining}")

    return report


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
