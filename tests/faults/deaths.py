"""Processes that die at a chosen moment, and disks that fail at one: what the tests of checkpoints do to a writer."""

import builtins
import errno
import io
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

CALLS = ("fsync", "open", "replace", "rename", "mkdir", "unlink", "rmdir")
"""System calls of a writer; a process is killed before one of these, or before it opens or writes a file."""

LIMIT = 30
"""Seconds after which a child that hangs is ended by the system."""


class Dead(BaseException):
    """Raised in a dead process: no later call has an effect, cleanup included."""


@contextmanager
def watched(before: Callable[[int], None]) -> Iterator[Callable[[], int]]:
    """Call `before(n)` before the n-th of the CALLS or writes; gives a function that says how many there were."""
    real = {name: getattr(os, name) for name in CALLS}
    open_file, count = io.open, 0

    def step() -> None:
        nonlocal count
        count += 1
        before(count)

    def watch(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            step()
            return real[name](*arguments, **named)

        return call

    class WatchedFile(io.FileIO):
        def write(self, data: Any) -> int:
            step()
            return super().write(data)

    def open_watched(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if set(mode) & set("wxa"):
            step()
            if "b" in mode and "+" not in mode and not arguments and not named:
                return io.BufferedWriter(WatchedFile(file, mode.replace("b", "")))
        return open_file(file, mode, *arguments, **named)

    for name in CALLS:
        setattr(os, name, watch(name))
    io.open = builtins.open = open_watched  # type: ignore[assignment]
    try:
        yield lambda: count
    finally:
        io.open = builtins.open = open_file
        for name, function in real.items():
            setattr(os, name, function)


def die(moment: int) -> Callable[[int], None]:
    """Really."""

    def before(count: int) -> None:
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(LIMIT)

    return before


def seem_dead(moment: int) -> Callable[[int], None]:
    """For tests within one process: from that moment on nothing is done."""

    def before(count: int) -> None:
        if count >= moment:
            raise Dead

    return before


def fail(moment: int, number: int = errno.ENOSPC) -> Callable[[int], None]:
    """One call fails."""

    def before(count: int) -> None:
        if count == moment:
            raise OSError(number, os.strerror(number))

    return before


def forked(work: Callable[[], None]) -> int:
    """Do something in a child process, which then ends with 0, or with 1 if it raised; the child's number."""
    pid = os.fork()
    return pid or _work(work)


def _work(work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        signal.alarm(LIMIT)
        work()
        code = 0
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """Return the exit code of a child, or minus its signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
