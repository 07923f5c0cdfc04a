"""Signal handling: Ctrl-C at any time, SIGTERM while there is nothing to save.

NOTE: imported before Ctrl-C is handled, so it imports almost nothing.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

EXIT_INTERRUPTED = 130
"""Exit code of `UserInterruptError`."""


def exit_at_once(number: int = signal.SIGINT, frame: object = None) -> NoReturn:
    """Exit without cleaning up."""
    os.write(2, b"pretune: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


@contextlib.contextmanager
def shut_down_cleanly() -> Iterator[None]:
    """Turn SIGTERM and Ctrl-C into an exception, so that the block removes its unfinished files.

    A second signal does not interrupt the cleanup. A third one ends the process at once.
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
            raise StopRequest(StoppedError(f"stopped by {name}; no output was written; run the command again"))
        if count == 2:  # NOTE: not print, which may be interrupted within a line.
            os.write(2, b"pretune: removing unfinished files; press Ctrl-C again to stop at once\n")
        else:
            exit_at_once()

    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, handler in handlers.items():
        if number == signal.SIGTERM or handler is not signal.SIG_IGN:  # background jobs of a shell ignore it
            signal.signal(number, stop)
    try:
        yield
    except StopRequest as request:
        raise request.error from None
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # None: not installed from Python
                signal.signal(number, handler)
