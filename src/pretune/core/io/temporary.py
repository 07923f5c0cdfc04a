"""Temporary names, locks of directories, and the only removal of files.

Temporary directories are named after their target and locked by their writer, so that those of dead writers are
recognised. NOTE: nothing removes a path that was read from a file: `remove` takes a directory and a name that its
writer's own pattern produces.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pretune.core.errors import UsageError
from pretune.core.io.files import TEMPORARY_PREFIX, is_file_name, make_temporary_name, sync, translate_write_errors

TEMPORARY_NAME = re.compile(r"\.tmp-(?:[0-9a-f]{12}-)?[0-9a-f]{12}")

_locked_descriptors: set[int] = set()  # of the directories that this process has locked


@contextlib.contextmanager
def temporary_directory(parent: Path, target: Path) -> Iterator[Path]:
    """Create a directory in `parent`, to be filled and renamed to `target`, and hold its lock during the block.

    The system releases the lock of a process that dies. So a directory with the right name and without a lock was left
    by a dead writer, and the next writer with the same target removes it. If a file system has no locks on directories
    (NFS), nothing is removed.
    """
    while True:
        path = parent / make_name(target)
        path.mkdir()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process with this target removed it before it was locked
            continue
        if lock(descriptor) is not False and path.exists():
            break
        os.close(descriptor)
    with holding(descriptor):
        yield path


@contextlib.contextmanager
def scratch_directory(target: Path) -> Iterator[Path]:
    """Create a directory beside a target, for files that are then moved to their names, and remove it afterwards."""
    remove_abandoned(target)
    with temporary_directory(target.resolve().parent, target) as path:
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def move_file(source: Path, target: Path) -> None:
    """Replace a file by another one of the same file system, atomically."""
    sync(source)
    os.replace(source, target)
    sync(target.parent)


def remove_abandoned(target: Path) -> None:
    """Remove directories that dead writers of `target` left next to it and inside it."""
    target = target.resolve()
    for folder in (target.parent, target):
        for path in folder.glob(f"{_make_prefix(target)}*"):
            if TEMPORARY_NAME.fullmatch(path.name):
                _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    """Remove a directory unless its writer is alive."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if lock(descriptor) is True:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _make_prefix(target: Path) -> str:
    return f"{TEMPORARY_PREFIX}{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]}-"


def make_name(target: Path) -> str:
    """Return a random name for an unfinished directory of a target."""
    return _make_prefix(target) + secrets.token_hex(6)


def lock(descriptor: int) -> bool | None:
    """Lock a directory: True, False if another process holds the lock, None if the file system has no such locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def holding(descriptor: int) -> Iterator[None]:
    """Close a descriptor, and so release its lock, after the block; forked workers close theirs at once."""
    _locked_descriptors.add(descriptor)
    try:
        yield
    finally:
        _locked_descriptors.discard(descriptor)
        os.close(descriptor)


def _release_in_child() -> None:
    """Close the locks of the parent in a forked worker, which may outlive it."""
    for descriptor in _locked_descriptors:
        os.close(descriptor)
    _locked_descriptors.clear()


os.register_at_fork(after_in_child=_release_in_child)


def remove(directory: str | os.PathLike[str], name: str, pattern: str) -> None:
    """Remove a file or folder inside a directory; a kill in between leaves all of it, or what `sweep` removes.

    The name, of one part or more, must match the pattern of its writer: a name read from a file cannot lead elsewhere.
    A link is removed, never what it points to; below a link nothing is removed.
    """
    if not is_nested(name) or not re.fullmatch(pattern, name):
        raise ValueError(f"'{name[:60]}' is not a name of its writer's pattern '{pattern}'")
    target = Path(directory, name)
    for parent in [Path(directory, parent) for parent in PurePosixPath(name).parents][:-1]:
        if parent.is_symlink():
            raise UsageError(f"cannot remove '{target}': '{parent}' is a symbolic link; remove the link")
    with translate_write_errors(target):
        hidden = target.parent / make_temporary_name()
        try:
            target.rename(hidden)
        except FileNotFoundError:
            return
        sync(hidden.parent)
        _delete(hidden)


def sweep(directory: str | os.PathLike[str]) -> int:
    """Remove temporary files left by killed writers directly inside a directory, and return their number.

    NOTE: call it only if there is no other writer: the files of a live one look the same.
    """
    with translate_write_errors(directory):
        try:
            leftovers = [child for child in Path(directory).iterdir() if TEMPORARY_NAME.fullmatch(child.name)]
        except FileNotFoundError:
            return 0
        for child in leftovers:
            _delete(child)
    return len(leftovers)


def _delete(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def is_nested(name: object) -> bool:
    """Return whether a value is a valid name of a file below its directory."""
    return isinstance(name, str) and all(map(is_file_name, name.split("/")))
