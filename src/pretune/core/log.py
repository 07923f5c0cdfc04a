"""Messages to the person at the terminal: always on stderr, for stdout belongs to results.

rich draws them where stderr is a terminal, and is imported only then; elsewhere they are plain lines.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Silence `say` and `warn` (`--quiet`); errors are raised, so they are not affected."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether messages are silenced; progress bars ask too."""
    return _quiet


@contextmanager
def hushed(hush: bool = True) -> Iterator[None]:
    """While the block runs, nothing is said."""
    before = _quiet
    set_quiet(before or hush)
    try:
        yield
    finally:
        set_quiet(before)


def say(message: str) -> None:
    """Tell what is going on."""
    _show(message, "")


def warn(message: str) -> None:
    """Tell what the user should look at, though the work goes on."""
    _show(f"warning: {message}", "yellow")


def _show(message: str, style: str) -> None:
    if _quiet:
        return
    # NOTE: while rich draws a bar, stderr is its own, which puts lines above the bar; a console would write into it.
    if not sys.stderr.isatty() or hasattr(sys.stderr, "rich_proxied_file"):
        print(message, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    Console(stderr=True).print(message, style=style or None, markup=False, highlight=False, soft_wrap=True)
