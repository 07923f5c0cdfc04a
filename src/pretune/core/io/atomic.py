"""Atomic writes of files and directories; translation of OS errors into our errors."""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import PretuneError, ResourceError, UsageError
from pretune.core.io.paths import TEMPORARY_PREFIX, make_temporary_name, remove_abandoned, temporary_directory

MANIFEST = "MANIFEST.json"
"""Last file to be written and first to be removed: without it the directory is incomplete."""

_RESOURCE_MESSAGES = {
    errno.ENOSPC: "the disk is full; free some space or choose another directory",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another directory",
    errno.EROFS: "the file system is read-only; choose another directory",
    errno.EACCES: "permission denied; choose another directory or change its permissions",
    errno.EPERM: "operation not permitted; choose another directory or change its permissions",
    errno.EFBIG: "the file is too large for the file system; choose another directory",
    errno.EIO: "the device reports an input/output error; check the disk",
    errno.EMFILE: "too many open files; raise `ulimit -n`",
}
_USAGE_MESSAGES = {
    errno.ENOENT: "no such directory; create it first",
    errno.ENOTDIR: "a part of the path is a file, not a directory; choose another directory",
    errno.EISDIR: "it is a directory, not a file; choose another name",
    errno.ENOTEMPTY: "it exists and is not empty; choose another directory",
    errno.EEXIST: "it exists; choose another name",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ELOOP: "a symbolic link points to itself; choose another directory",
}


@contextlib.contextmanager
def translate_write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Translate OS errors during a write to `path` into one-line errors."""
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
    """Write a file atomically: its name refers to the old content or to all of `data`, even after a power failure."""
    target = Path(path)
    content = data.encode() if isinstance(data, str) else data
    temporary = target.parent / make_temporary_name()
    with translate_write_errors(target):
        try:
            # NOTE: not tempfile.mkstemp, whose files only their owner can read, whatever the umask.
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
    """Yield a temporary directory to fill; it becomes `path` if the block succeeds and is removed if it fails.

    A new `path` appears by one rename. An existing one (empty, or not empty with `overwrite`) keeps its other files and
    receives the new ones one by one, its manifest removed first and restored last, so that a kill in between leaves
    a directory that is recognisably incomplete. Its temporary directory lies inside, since `path` may be a mount.
    Leftovers of an earlier writer of `path` that was killed are removed first.
    """
    with translate_write_errors(path):
        target = Path(path).resolve()
        if target.exists() and not target.is_dir():
            raise UsageError(
                f"cannot write '{os.fspath(path)}': it is a file, not a directory; choose another directory"
            )
        if file := next((parent for parent in target.parents if parent.is_file()), None):
            raise UsageError(f"cannot write '{os.fspath(path)}': '{file}' is a file, not a directory; move it")
        exists = target.is_dir()
        if exists and not overwrite and any(not child.name.startswith(TEMPORARY_PREFIX) for child in target.iterdir()):
            raise UsageError(f"cannot write '{os.fspath(path)}': it exists and is not empty; choose another directory")
        new_parents = [parent for parent in target.parents if not parent.exists()]  # the innermost first
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
                    for folder in [target, *new_parents]:
                        sync(folder.parent)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                for folder in new_parents:
                    with contextlib.suppress(OSError):  # another process may have put files there
                        folder.rmdir()
                raise


def _merge(source: Path, target: Path) -> None:
    """Move every file of a tree over another tree; manifests last, the outermost one at the very end."""
    paths = [Path(folder, name).relative_to(source) for folder, _, names in os.walk(source) for name in names]
    files = sorted(paths, key=lambda file: (file.name == MANIFEST, -len(file.parts), file))
    for file in files:  # check everything before moving anything
        if (target / file).is_dir():
            raise UsageError(f"cannot write '{target / file}': it is a directory, not a file; move it")
        for folder in [target / parent for parent in file.parents]:
            if folder.exists() and not folder.is_dir():
                raise UsageError(f"cannot write '{target / file}': '{folder}' is a file; move it")
    for stale in {Path(MANIFEST), *(file for file in files if file.name == MANIFEST)}:
        (target / stale).unlink(missing_ok=True)
        sync((target / stale).parent)
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        if file.name == MANIFEST:  # the files must be on disk before their manifest
            sync((target / file).parent)
        os.replace(source / file, target / file)
    for name, _, _ in os.walk(source, topdown=False):
        if Path(name) != source:
            (target / Path(name).relative_to(source)).mkdir(parents=True, exist_ok=True)
            Path(name).rmdir()


def _sync_tree(directory: Path) -> None:
    for folder, _, names in os.walk(directory):
        for name in names:
            sync(Path(folder, name))
        sync(Path(folder))


def sync(path: Path) -> None:
    """Flush a file's content, or a directory's entries, to disk."""
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
    """Return the errno of an error; the Rust libraries (safetensors, tokenizers) give it only in their text."""
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error)[:1000])
    return int(match[1]) if match else None


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a file or directory; a kill in between leaves all of it, or only temporary files that `sweep` removes."""
    target = Path(path)
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
            leftovers = [child for child in Path(directory).iterdir() if child.name.startswith(TEMPORARY_PREFIX)]
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
