"""Messages to stderr and results to stdout, with control characters escaped.

rich formats messages where stderr is a terminal, and is imported only then; elsewhere they are plain lines.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_quiet = False
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape(text: str) -> str:
    r"""Return text with control characters as \uXXXX, so that data cannot control the terminal or reorder a line.

    Line breaks and tabs stay. JSON stays equivalent: it escapes these characters in the same way.

    >>> print(escape("red \x1b[31m, cleared \x9b2J"))
    red \u001b[31m, cleared \u009b2J
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_result(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Print a result to stdout, escaped. NOTE: use this for all text on stdout that holds data."""
    print(escape(text), end=end, flush=flush)


def print_json(data: object) -> None:
    """Print data to stdout as indented JSON; NaN and infinity raise a ValueError."""
    print_result(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def set_quiet(quiet: bool) -> None:
    """Silence `info` and `warn` (`--quiet`); errors are raised, so they are not affected."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Return whether messages are silenced; progress bars check it too."""
    return _quiet


@contextmanager
def silence(quiet: bool = True) -> Iterator[None]:
    """Silence messages inside the block."""
    was_quiet = _quiet
    set_quiet(was_quiet or quiet)
    try:
        yield
    finally:
        set_quiet(was_quiet)


def info(message: str) -> None:
    """Log a progress message."""
    _show(message, "")


def warn(message: str) -> None:
    """Log a warning; the run continues."""
    _show(f"warning: {message}", "yellow")


def _show(message: str, style: str) -> None:
    if _quiet:
        return
    message = escape(message)
    # NOTE: while rich draws a progress bar, it replaces stderr by a proxy that prints above the bar.
    if not sys.stderr.isatty() or hasattr(sys.stderr, "rich_proxied_file"):
        print(message, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    Console(stderr=True).print(message, style=style or None, markup=False, highlight=False, soft_wrap=True)
