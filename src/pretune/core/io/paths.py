"""Safe access to untrusted files: names confined to a directory, bounded content, regular files only."""

import io
import os
import stat
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
