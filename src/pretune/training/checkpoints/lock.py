"""Lock of a run directory, held by the operating system and released when the process dies."""

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
"""Error numbers of file systems without locks."""


class RunLock:
    """Exclusive right to write into a run directory, which is created if missing.

    The content of the lock file is information for users; the lock itself is the system's and ends with the process. A
    file left by a dead process is therefore simply locked again, even if its pid is in use by another process.
    """

    def __init__(self, directory: Path, *, on_warning: Callable[[str], None]) -> None:
        self.directory, self.on_warning = directory, on_warning
        self.path = directory / LOCK_FILE
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """True while this object holds the lock."""
        return self._descriptor is not None

    def __enter__(self) -> "RunLock":
        if self.directory.exists() and not self.directory.is_dir():
            raise UsageError(f"cannot write '{self.directory}': it is a file, not a directory; use another directory")
        with io.translate_write_errors(self.path):
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor = self._acquire()
        previous_holder = _read_holder(descriptor)
        if previous_holder:
            self.on_warning(f"{self.directory}: {previous_holder} was killed; this run replaces it")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with io.translate_write_errors(self.path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder, allow_nan=False).encode(), 0)
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
                    f"{self.directory}: in use by {holder}; wait for it, stop it, or use another directory"
                ) from None
            except OSError as error:
                if error.errno not in _UNSUPPORTED_ERRNOS:
                    os.close(descriptor)
                    raise
                self.on_warning(
                    f"{self.directory}: this file system does not support locks; do not start a second run there"
                )
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                    return descriptor
            os.close(descriptor)  # the previous holder removed the file after we opened it

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_HELD_LOCKS: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _release_in_child() -> None:
    """Release the lock in a forked worker, which may outlive its parent."""
    for lock in _HELD_LOCKS:
        lock._release()


os.register_at_fork(after_in_child=_release_in_child)


def _read_holder(descriptor: int) -> str:
    """Describe the holder in a lock file; '' if the file is empty, as it is just after its creation."""
    data = os.pread(descriptor, 1000, 0)
    try:
        holder = json.loads(data) if data else {}
        return (
            f"a run (pid {int(holder['pid'])} on {holder['host']!r:.80}, since {holder['since']!r:.40})"
            if holder
            else ""
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return "an unknown run"
