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

LOCK_FILE = ".lock"
_UNSUPPORTED_ERRNOS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""What file systems answer that have no locks."""


class RunLock:
    """The right to write into a run's directory, which is made if it is not there.

    The file in it tells a person who holds it; that somebody does is known to the system alone, which gives the lock up
    when the process ends. So one left by a dead process, or with a number that another process has now, is just taken.
    """

    def __init__(self, directory: Path, *, on_warning: Callable[[str], None]) -> None:
        self.directory, self.on_warning = directory, on_warning
        self.path = directory / LOCK_FILE
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds it."""
        return self._descriptor is not None

    def __enter__(self) -> "RunLock":
        if self.directory.exists() and not self.directory.is_dir():
            raise UsageError(f"cannot write '{self.directory}': it is a file, not a directory; choose another place")
        with io.translate_write_errors(self.path):
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor = self._acquire()
        before = _read_holder(descriptor)
        if before:
            self.on_warning(f"{self.directory}: {before} ended without tidying up; this run takes its place")
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with io.translate_write_errors(self.path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(who, allow_nan=False).encode(), 0)
        self._descriptor = descriptor
        _HELD_LOCKS.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self._release()

    def _acquire(self) -> int:
        while True:
            descriptor = io.open_in_place(self.path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read_holder(descriptor) or "another process"
                os.close(descriptor)
                raise UsageError(
                    f"{self.directory}: {holder} is writing there; wait for it, stop it, or choose another place"
                ) from None
            except OSError as fault:
                if fault.errno not in _UNSUPPORTED_ERRNOS:
                    os.close(descriptor)
                    raise
                self.on_warning(f"{self.directory}: cannot be locked on this file system; start no second run there")
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                    return descriptor
            os.close(descriptor)  # its last holder removed it after we had opened it

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_HELD_LOCKS: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _release_in_child() -> None:
    """A forked worker must not hold the lock of its parent, which it may outlive."""
    for lock in _HELD_LOCKS:
        lock._release()


os.register_at_fork(after_in_child=_release_in_child)


def _read_holder(descriptor: int) -> str:
    """Who a lock file says holds it: '' where it is empty, as it is for a moment after it was made."""
    data = os.pread(descriptor, 1000, 0)
    try:
        who = json.loads(data) if data else {}
        return f"a run (pid {int(who['pid'])} on {who['host']!r:.80}, since {who['since']!r:.40})" if who else ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return "a run that cannot be told"
