"""Safe access to files: names confined to a directory, bounded content, regular files only, and atomic writes.

Errors of the system are translated into one-line errors. JSON is strict. Manifests list the files of a directory with
their sizes and hashes, to detect damage.
"""

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pretune.core.errors import (
    CheckpointError,
    PretuneError,
    ResourceError,
    UsageError,
    explain_missing,
    suggest,
    suggest_file,
)

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
    if not (is_nested(name) if allow_nested else is_file_name(name)):
        value = repr(name[:60]) if isinstance(name, str) else f"a {type(name).__name__}"
        raise error(f"{location}: {value} is not a simple file name; it must name a file in the same directory")
    path = Path(directory, str(name))
    if (allow_nested or path.is_symlink()) and not _is_within(path, Path(directory)):
        raise error(f"{location}: '{name}' is a symbolic link out of its directory; replace it by the file")
    return path


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return a path without symbolic links; one in a loop of links stays (`Path.resolve` raises an error)."""
    return Path(os.path.realpath(path))


def is_file_name(name: object) -> bool:
    """Return whether a value is a valid name of a file directly inside its directory, on every system."""
    if not isinstance(name, str) or name in ("", ".", "..") or len(name.encode(errors="replace")) > MAX_NAME:
        return False
    return name.isprintable() and not set(name) & set("/\\:")


def is_nested(name: object) -> bool:
    """Return whether a value is a valid name of a file below its directory."""
    return isinstance(name, str) and all(map(is_file_name, name.split("/")))


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


def check_links(directory: Path, error: type[PretuneError]) -> None:
    """Raise `error` for a broken link among the settings and weights of a directory, which would count as absent."""
    for path in sorted(directory.glob("*")):
        if path.suffix in (".json", ".safetensors") and path.is_symlink() and not path.exists():
            raise error(f"{path}: no such file{suggest_file(path)}")


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


def make_temporary_name() -> str:
    """Return a random name for an unfinished file or directory."""
    return TEMPORARY_PREFIX + secrets.token_hex(6)


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
    # NOTE: half a surrogate pair becomes `\udXXX`, which is its escape in JSON.
    content = data.encode(errors="backslashreplace") if isinstance(data, str) else data
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


MAX_BYTES = 64 * 2**20
MAX_DEPTH = 100
"""Levels of nesting: far more than any valid file has, far fewer than the recursion limit."""
FORMAT: Mapping[str, int] = {"format": 2}
"""First entry of run.json, task.json and state.json."""


def read_json(path: str | os.PathLike[str], error: type[PretuneError], limit: int = MAX_BYTES) -> dict[str, Any]:
    """Read a file that holds one JSON object; any problem is raised as `error`."""
    name = os.fspath(path)
    data = parse_json(read_bounded(path, error, limit), error, name)
    if not isinstance(data, dict):
        raise error(f"{name}: expected a JSON object at the top level, got {describe_type(data)}")
    return data


def read_formatted_json(path: str | os.PathLike[str], error: type[PretuneError]) -> dict[str, Any]:
    """Read a file as `read_json` does; one whose `FORMAT` is another is raised as `error`."""
    data = read_json(path, error)
    current = FORMAT["format"]
    version = data.get("format", current)
    if type(version) is not int or version != current:
        raise error(
            f"{os.fspath(path)}: has format {str(version)[:40]}, this version reads {current}; use the version that "
            "wrote it, or a newer one"
        )
    return data


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Write data as indented JSON, atomically; NaN and infinity raise a ValueError."""
    atomic_write(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def parse_json(content: str | bytes, error: type[PretuneError], location: str) -> Any:
    """Parse strict JSON of any type, bytes as UTF-8; `location` names it in errors."""
    try:
        text = content.decode() if isinstance(content, bytes) else content
    except UnicodeDecodeError as fault:
        raise error(f"{location}: not UTF-8 at byte {fault.start}") from None

    def raise_not_number(constant: str) -> NoReturn:
        raise error(f"{location}: {constant} is not a JSON number")

    def parse_number(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            raise_not_number(digits[:40])
        return value

    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            duplicate = next(key for key, count in counts.items() if count > 1)
            raise error(f"{location}: duplicate key {duplicate[:60]!r}")
        return table

    try:
        data = json.loads(
            text, parse_constant=raise_not_number, parse_float=parse_number, object_pairs_hook=build_object
        )
    except json.JSONDecodeError as fault:
        raise error(f"{location}: bad JSON at {fault.lineno}:{fault.colno}: {fault.msg}") from None
    except RecursionError:
        raise error(f"{location}: bad JSON: nested too deeply") from None
    except ValueError:  # Python refuses to convert integers of thousands of digits
        raise error(f"{location}: bad JSON: a number has too many digits") from None
    if _is_deep(data):
        raise error(f"{location}: bad JSON: nested too deeply (more than {MAX_DEPTH} levels)")
    return data


def _is_deep(data: object) -> bool:
    """Return whether data are nested deeper than `MAX_DEPTH`."""
    level = [data]
    for _ in range(MAX_DEPTH):
        parts = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [inner for part in parts for inner in part if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def describe_type(data: object) -> str:
    """Return the JSON type of a value, for a message."""
    names = {list: "an array", str: "a string", bool: "a boolean", dict: "an object", type(None): "null"}
    return names.get(type(data), "a number")


_HASH = re.compile(r"[0-9a-f]{64}")


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal; the file is read in chunks."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while data := file.read(2**20):  # NOTE: not file_digest, which never returns if there is nothing to read yet
            digest.update(data)
    return digest.hexdigest()


def write_manifest(
    directory: str | os.PathLike[str],
    names: Iterable[str],
    extra: Mapping[str, object] | None = None,
    *,
    entries: Mapping[str, object] | None = None,
) -> None:
    """Write MANIFEST.json: {"files": {name: {"size", "sha256"}}, **extra}, for files directly inside `directory`.

    `entries` are those of files whose hashes are known.
    """
    folder = Path(directory)
    files: dict[str, object] = dict(entries or {})
    for name in sorted(names):
        if not is_file_name(name) or name == MANIFEST:
            raise ValueError(f"a manifest cannot list {name!r}: it is not a simple file name")
        files[name] = {"size": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
    if extra and "files" in extra:
        raise ValueError("'files' is reserved and cannot be an extra key of a manifest")
    write_json(folder / MANIFEST, {"files": dict(sorted(files.items())), **(extra or {})})


def check_manifest(directory: str | os.PathLike[str], hashes: bool = True) -> dict[str, Any]:
    """Check every file that MANIFEST.json lists and return the manifest; the first problem raises a CheckpointError.

    Without `hashes` only presence and size are checked, which is fast for any size.
    """
    try:
        return _check_folder(Path(directory), hashes)
    except OSError as fault:
        raise CheckpointError(f"{fault.filename or directory}: cannot be read: {fault.strerror}") from fault


def _check_folder(folder: Path, hashes: bool) -> dict[str, Any]:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: {explain_missing(folder, 'directory')}")
    manifest_path = folder / MANIFEST
    if not manifest_path.exists():
        raise CheckpointError(f"{folder}: no {MANIFEST}, so the directory is incomplete; copy or create it again")
    manifest = read_json(manifest_path, CheckpointError)
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise CheckpointError(f"{manifest_path}: 'files' is missing or not an object{suggest('files', manifest)}")
    for name, entry in files.items():
        file = resolve_inside(folder, name, CheckpointError, manifest_path)
        if name == MANIFEST:
            raise CheckpointError(f"{manifest_path}: lists itself; copy or create the directory again")
        size, digest = _read_entry(entry, name, manifest_path)
        _check_file(file, size, digest if hashes else None, manifest_path)
    return manifest


def _read_entry(entry: object, name: str, location: Path) -> tuple[int, str]:
    match entry:
        case {"size": int(size), "sha256": str(digest)} if size >= 0 and size is not True and _HASH.fullmatch(digest):
            return size, digest
    raise CheckpointError(f"{location}: the entry of '{name}' needs a 'size' in bytes and a 'sha256' of 64 digits")


def _check_file(file: Path, size: int, digest: str | None, location: Path) -> None:
    remedy = "copy or create the directory again"
    if not file.is_file():
        raise CheckpointError(f"{file}: missing, though {MANIFEST} lists it; {remedy}")
    actual_size = file.stat().st_size
    if actual_size != size:
        raise CheckpointError(f"{file}: has {actual_size} bytes, but {MANIFEST} says {size}; {remedy}")
    if digest is not None and sha256(file) != digest:
        raise CheckpointError(f"{file}: the SHA-256 differs from {MANIFEST}; {remedy}")
