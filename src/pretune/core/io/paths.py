"""Safe access to untrusted files (confined names, bounded content, regular files only), and temporary directories."""

import contextlib
import fcntl
import hashlib
import io
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import PretuneError, UsageError, suggest_file

MAX_NAME = 255
"""Length in bytes that every file system allows for a file name."""


def resolve_inside(
    directory: str | os.PathLike[str],
    name: object,
    error: type[PretuneError],
    source: str | os.PathLike[str] | None = None,
    *,
    allow_nested: bool = False,
) -> Path:
    """Return the path of a file or folder inside a directory, from a name that was read from a file.

    A name that leads elsewhere raises `error`: `..`, an absolute path, a path of several parts without `allow_nested`,
    or a symbolic link out of the directory. Links of a Hugging Face cache (`snapshots/REVISION/x ->
    ../../blobs/y`) are followed. `source` is the file that holds the name.

    NOTE: use this for every name read from a file, before reading, writing or removing anything under it.
    """
    location = os.fspath(directory if source is None else source)
    parts = name.split("/") if allow_nested and isinstance(name, str) else [name]
    if not all(is_file_name(part) for part in parts):
        value = repr(name[:60]) if isinstance(name, str) else f"a {type(name).__name__}"
        raise error(f"{location}: {value} is not a simple file name; it must name a file in the same directory")
    path = Path(directory, *map(str, parts))
    if (allow_nested or path.is_symlink()) and not _is_within(path, Path(directory)):
        raise error(f"{location}: '{name}' is a symbolic link out of its directory; replace it by the file")
    return path


def is_file_name(name: object) -> bool:
    """Return whether a value is a valid name of a file directly inside its directory, on every system."""
    if not isinstance(name, str) or name in ("", ".", "..") or len(name.encode(errors="replace")) > MAX_NAME:
        return False
    return name.isprintable() and not set(name) & set("/\\:")


def _is_within(link: Path, directory: Path) -> bool:
    home, target = Path(os.path.realpath(directory)), Path(os.path.realpath(link))
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    return target.is_relative_to(home) or target.is_relative_to(blobs)


def open_regular(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a regular file; anything else is an OSError (opening a pipe would block, a device has no end)."""
    # NOTE: non-blocking, so that a pipe created since the last check does not block.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "not a regular file", os.fspath(path))
    return io.FileIO(descriptor)  # unbuffered: whole chunks are read


def open_in_place(path: str | os.PathLike[str]) -> int:
    """Open a file for changes in place, creating it if missing, and return its descriptor.

    A symbolic link raises a UsageError: the content of its target would be overwritten. So does anything but a regular
    file. NOTE: use this for every file of a run that is appended to or truncated; all others are replaced.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as fault:
        if not Path(path).is_symlink():
            raise
        raise UsageError(f"cannot write '{os.fspath(path)}': it is a symbolic link; remove it") from fault
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"cannot write '{os.fspath(path)}': it is not a regular file; remove it")
    return descriptor


def read_bounded(path: str | os.PathLike[str], error: type[PretuneError], limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; any problem is raised as `error`."""
    name = os.fspath(path)
    try:
        with io.BufferedReader(open_regular(path)) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise error(f"{name}: has {size} bytes, the limit is {limit}")
            content = file.read(limit + 1) or b""  # not the size above: files grow, and those of /proc have none
    except FileNotFoundError:
        raise error(f"{name}: no such file{suggest_file(name)}") from None
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        raise error(f"{name}: cannot be read: {getattr(fault, 'strerror', None) or fault}") from fault
    if len(content) > limit:
        raise error(f"{name}: has more than {limit} bytes, the limit")
    return content


TEMPORARY_PREFIX = ".tmp-"
"""Prefix of the names of files that are being written or removed."""

_locked_descriptors: set[int] = set()  # of the directories that this process has locked


def make_temporary_name() -> str:
    """Return a random name for an unfinished file or directory."""
    return TEMPORARY_PREFIX + secrets.token_hex(6)


@contextlib.contextmanager
def temporary_directory(parent: Path, target: Path) -> Iterator[Path]:
    """Create a directory in `parent`, to be filled and renamed to `target`, and hold its lock during the block.

    The system releases the lock of a process that dies. So a directory with the right name and without a lock was left
    by a dead writer, and the next writer with the same target removes it. If a file system has no locks on directories
    (NFS), nothing is removed.
    """
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
