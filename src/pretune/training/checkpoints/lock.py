"""One run per directory, held by the system: whoever dies, however, no longer holds it."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from pretune.core import io
from pretune.core.errors import UsageError

FILE = ".lock"
_CANNOT = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""What file systems answer that have no locks."""


class Lock:
    """The right to write into a run's directory, which is made if it is not there.

    The file in it tells a person who holds it; that somebody does is known to the system alone, which gives the lock up
    when the process ends. So one left by a dead process, or with a number that another process has now, is just taken.
    """

    def __init__(self, directory: Path, *, on_note: Callable[[str], None]) -> None:
        self.directory, self.on_note = directory, on_note
        self.path = directory / FILE
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds it."""
        return self._descriptor is not None

    def __enter__(self) -> "Lock":
        if self.directory.exists() and not self.directory.is_dir():
            raise UsageError(f"cannot write '{self.directory}': it is a file, not a directory; choose another place")
        with io.writing(self.path):
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor = self._locked()
        before = _read(descriptor)
        if before:
            self.on_note(f"{self.directory}: {before} ended without tidying up; this run takes its place")
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with io.writing(self.path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(who, allow_nan=False).encode(), 0)
        self._descriptor = descriptor
        _HELD.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self._forget()

    def _locked(self) -> int:
        while True:
            descriptor = io.open_in_place(self.path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read(descriptor) or "another process"
                os.close(descriptor)
                raise UsageError(
                    f"{self.directory}: {holder} is writing there; wait for it, stop it, or choose another place"
                ) from None
            except OSError as fault:
                if fault.errno not in _CANNOT:
                    os.close(descriptor)
                    raise
                self.on_note(f"{self.directory}: cannot be locked on this file system; start no second run there")
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                    return descriptor
            os.close(descriptor)  # its last holder removed it after we had opened it

    def _forget(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_HELD: weakref.WeakSet[Lock] = weakref.WeakSet()


def _in_child() -> None:
    """A forked worker must not hold the lock of its parent, which it may outlive."""
    for lock in _HELD:
        lock._forget()


os.register_at_fork(after_in_child=_in_child)


def _read(descriptor: int) -> str:
    """Who a lock file says holds it: '' where it is empty, as it is for a moment after it was made."""
    data = os.pread(descriptor, 1000, 0)
    try:
        who = json.loads(data) if data else {}
        return f"a run (pid {int(who['pid'])} on {who['host']!r:.80}, since {who['since']!r:.40})" if who else ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return "a run that cannot be told"
