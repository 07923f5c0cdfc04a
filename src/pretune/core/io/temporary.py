"""Temporary directories named after their target and locked by their writer, so that abandoned ones are recognised.

The system releases the lock of a process that dies. So a directory with the right name and without a lock was left by
a dead writer, and the next writer with the same target removes it. If a file system has no locks on directories
(NFS), nothing is removed.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"
"""Prefix of the names of files that are being written or removed."""

_locked_descriptors: set[int] = set()  # of the directories that this process has locked


def make_temporary_name() -> str:
    """Return a random name for an unfinished file or directory."""
    return TEMPORARY_PREFIX + secrets.token_hex(6)


@contextlib.contextmanager
def temporary_directory(parent: Path, target: Path) -> Iterator[Path]:
    """Create a directory in `parent`, to be filled and renamed to `target`, and hold its lock during the block."""
    while True:
        path = parent / f"{_make_prefix(target)}{secrets.token_hex(6)}"
        path.mkdir()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process with this target removed it before it was locked
            continue
        if _lock(descriptor) is not False and path.exists():
            break
        os.close(descriptor)
    _locked_descriptors.add(descriptor)
    try:
        yield path
    finally:
        _locked_descriptors.discard(descriptor)
        os.close(descriptor)


def remove_abandoned(target: Path) -> bool:
    """Remove directories that dead writers of `target` left next to it and inside it; return whether any lay inside."""
    target = target.resolve()
    removals = {
        folder: [_remove(path) for path in folder.glob(f"{_make_prefix(target)}*")]
        for folder in (target.parent, target)
    }
    return any(removals[target])


def _remove(path: Path) -> bool:
    """Remove a directory unless its writer is alive; return whether it was removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        dead = _lock(descriptor) is True
        if dead:
            shutil.rmtree(path, ignore_errors=True)
        return dead
    finally:
        os.close(descriptor)


def _make_prefix(target: Path) -> str:
    return f"{TEMPORARY_PREFIX}{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]}-"


def _lock(descriptor: int) -> bool | None:
    """Lock a directory: True, False if another process holds the lock, None if the file system has no such locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _release_in_child() -> None:
    """Close the locks of the parent in a forked worker, which may outlive it."""
    for descriptor in _locked_descriptors:
        os.close(descriptor)
    _locked_descriptors.clear()


os.register_at_fork(after_in_child=_release_in_child)
