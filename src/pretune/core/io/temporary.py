"""Temporary directories that show whether their writer lives: named after their target, locked by their writer.

The system releases the lock of a process that dies, however it dies. So a directory with the right name and without a
lock was left by a dead writer, and the next one with the same target removes it. Where a file system has no locks on
directories (NFS), nothing is removed.
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
"""How the names of what is being written, or being removed, begin."""

_locked_descriptors: set[int] = set()  # descriptors of the directories this process has locked


def make_temporary_name() -> str:
    """A name that nobody has, for what is not finished."""
    return TEMPORARY_PREFIX + secrets.token_hex(6)


@contextlib.contextmanager
def temporary_directory(parent: Path, target: Path) -> Iterator[Path]:
    """Make a directory in `place` to be filled and renamed to `target`, and hold its lock during the block."""
    while True:
        path = parent / f"{_make_prefix(target)}{secrets.token_hex(6)}"
        path.mkdir()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process with this target took it for a dead one's before it was locked
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
    """Remove what dead writers of `target` left beside it and inside it; return whether something lay inside."""
    target = target.resolve()
    removed = {
        place: [_remove(path) for path in place.glob(f"{_make_prefix(target)}*")] for place in (target.parent, target)
    }
    return any(removed[target])


def _remove(path: Path) -> bool:
    """Remove a directory unless its writer lives."""
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
    """Lock a directory: True, False where another process holds it, None where the file system has no such locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _release_in_child() -> None:
    """A forked worker must not hold the locks of its parent, which it may outlive."""
    for descriptor in _locked_descriptors:
        os.close(descriptor)
    _locked_descriptors.clear()


os.register_at_fork(after_in_child=_release_in_child)
