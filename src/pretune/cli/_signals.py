"""Signals that end a command: Ctrl-C at any time, and SIGTERM while there is nothing to save.

NOTE: imported before Ctrl-C is handled, so it imports next to nothing.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

INTERRUPTED = 130
"""The exit code of `Interrupted`."""


def exit_at_once(number: int = signal.SIGINT, frame: object = None) -> NoReturn:
    """End the process without cleaning up."""
    os.write(2, b"pretune: interrupted\n")
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def shut_down_cleanly() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the block by an exception, so that it removes what is unfinished.

    Once one of them has come, a second does not disturb the removal. A third ends the process at once.
    """
    from pretune.core.errors import StoppedError, StopRequest

    count = 0

    def stop(number: int, frame: object) -> None:
        nonlocal count
        count += 1
        if count == 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        if count == 1:
            name = signal.Signals(number).name
            raise StopRequest(StoppedError(f"stopped by {name}; nothing was kept, run the command again"))
        if count == 2:  # NOTE: not print, which may be in the middle of a line of its own.
            os.write(2, b"pretune: removing what is unfinished; press Ctrl-C again to stop at once\n")
        else:
            exit_at_once()

    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, handler in before.items():
        if number == signal.SIGTERM or handler is not signal.SIG_IGN:  # a job in the background of a shell ignores it
            signal.signal(number, stop)
    try:
        yield
    except StopRequest as request:
        raise request.error from None
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: set by something that is not Python
                signal.signal(number, handler)
