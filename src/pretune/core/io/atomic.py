"""Atomic writes of files and directories, and the one place where faults of the system become errors."""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import PretuneError, ResourceError, UsageError
from pretune.core.io.temporary import TEMPORARY_PREFIX, make_temporary_name, remove_abandoned, temporary_directory

MANIFEST = "MANIFEST.json"
"""The last file to appear in a directory and the first to go: without it the directory is not complete."""

_RESOURCE_MESSAGES = {
    errno.ENOSPC: "the disk is full; free some space or choose another place",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another place",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EACCES: "permission denied; choose another place or change its permissions",
    errno.EPERM: "operation not permitted; choose another place or change its permissions",
    errno.EFBIG: "the file is too large for the file system; choose another place",
    errno.EIO: "the device reports an input/output error; check the disk",
    errno.EMFILE: "too many open files; raise `ulimit -n`",
}
_USAGE_MESSAGES = {
    errno.ENOENT: "no such directory; make it first",
    errno.ENOTDIR: "a part of the path is a file, not a directory; choose another place",
    errno.EISDIR: "it is a directory, not a file; choose another name",
    errno.ENOTEMPTY: "it exists and is not empty; choose another place",
    errno.EEXIST: "it exists; choose another name",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ELOOP: "a symbolic link points to itself; choose another place",
}


@contextlib.contextmanager
def translate_write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the faults of the system while something is written to `path` into one-line errors."""
    try:
        yield
    except PretuneError:
        raise
    except Exception as error:
        number = _get_errno(error)
        if number in _RESOURCE_MESSAGES:
            raise ResourceError(f"cannot write '{os.fspath(path)}': {_RESOURCE_MESSAGES[number]}") from error
        if number in _USAGE_MESSAGES:
            raise UsageError(f"cannot write '{os.fspath(path)}': {_USAGE_MESSAGES[number]}") from error
        raise


def atomic_write(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file so that its name shows either what was there before or all of `data`, also after a power cut."""
    target = Path(path)
    content = data.encode() if isinstance(data, str) else data
    temporary = target.parent / make_temporary_name()
    with translate_write_errors(target):
        try:
            # NOTE: not tempfile.mkstemp, which makes files that only their owner can read, whatever the umask says.
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync(target.parent)


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary directory to fill; it becomes `path` when the block succeeds, and vanishes when it fails.

    A new `path` appears by one rename. An existing one (empty, or not empty with `overwrite`) keeps its other files and
    receives the new ones one by one, its manifest removed first and put back last, so that a kill in between leaves
    a directory that is seen to be incomplete. There the temporary directory lies inside, since `path` may be a mount.
    What an earlier writer of `path` left when it was killed is removed first.
    """
    with translate_write_errors(path):
        target = Path(path).resolve()
        if target.exists() and not target.is_dir():
            raise UsageError(f"cannot write '{os.fspath(path)}': it is a file, not a directory; choose another place")
        if file := next((above for above in target.parents if above.is_file()), None):
            raise UsageError(f"cannot write '{os.fspath(path)}': '{file}' is a file, not a directory; move it away")
        exists = target.is_dir()
        if exists and not overwrite and any(not child.name.startswith(TEMPORARY_PREFIX) for child in target.iterdir()):
            raise UsageError(f"cannot write '{os.fspath(path)}': it exists and is not empty; choose another place")
        new = [above for above in target.parents if not above.exists()]  # the innermost first
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target)
        with temporary_directory(target if exists else target.parent, target) as temporary:
            try:
                yield temporary
                _sync_tree(temporary)
                if exists:
                    _merge(temporary, target)
                    temporary.rmdir()
                    sync(target)
                else:
                    temporary.rename(target)
                    for above in [target, *new]:
                        sync(above.parent)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                for above in new:
                    with contextlib.suppress(OSError):  # somebody else may have put something there
                        above.rmdir()
                raise


def _merge(source: Path, target: Path) -> None:
    """Move every file of a tree over another tree; manifests last, the outermost last of all."""
    found = [Path(folder, name).relative_to(source) for folder, _, names in os.walk(source) for name in names]
    files = sorted(found, key=lambda file: (file.name == MANIFEST, -len(file.parts), file))
    for file in files:  # looked at before anything is moved
        if (target / file).is_dir():
            raise UsageError(f"cannot write '{target / file}': it is a directory, not a file; move it away")
        for above in [target / parent for parent in file.parents]:
            if above.exists() and not above.is_dir():
                raise UsageError(f"cannot write '{target / file}': '{above}' is a file; move it away")
    for stale in {Path(MANIFEST), *(file for file in files if file.name == MANIFEST)}:
        (target / stale).unlink(missing_ok=True)
        sync((target / stale).parent)
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        if file.name == MANIFEST:  # what the manifest vouches for must be on the disk before it
            sync((target / file).parent)
        os.replace(source / file, target / file)
    for folder, _, _ in os.walk(source, topdown=False):
        if Path(folder) != source:
            (target / Path(folder).relative_to(source)).mkdir(parents=True, exist_ok=True)
            Path(folder).rmdir()


def _sync_tree(directory: Path) -> None:
    for folder, _, names in os.walk(directory):
        for name in names:
            sync(Path(folder, name))
        sync(Path(folder))


def sync(path: Path) -> None:
    """Make a file's content, or a directory's names, survive a power cut."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync directories
                raise
        finally:
            os.close(descriptor)


def _get_errno(error: Exception) -> int | None:
    """The number of a fault; the Rust libraries (safetensors, tokenizers) give it only in their text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error)[:1000])
    return int(found[1]) if found else None
