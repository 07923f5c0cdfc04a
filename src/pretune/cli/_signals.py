"""Being asked to stop while there is nothing to save."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

from pretune.core.errors import Stopped


@contextlib.contextmanager
def ending_well() -> Iterator[None]:
    """While the block runs, being asked to stop by a scheduler ends it as Ctrl-C does: nothing stays behind."""

    def stop(number: int, frame: object) -> NoReturn:
        raise Stopped(f"stopped by {signal.Signals(number).name}; nothing was kept, run the command again")

    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
