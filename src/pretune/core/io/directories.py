"""Directories written as a whole.

A new directory appears by one rename. Into an existing one the files are moved one by one, which a kill may interrupt:
so all of them are staged in a folder inside it (`.tmp-…`), with a journal that lists them. Once that folder is renamed
(`.commit-…`), the new state holds, and whoever opens the directory next completes it (`recover`).

NOTE: what a write removes is decided by the patterns of its owner, which are code, never by the journal. They are here,
and not with the writers, because whoever opens a directory completes an interrupted write into it.

Here is the only removal of files. Temporary directories are named after their target and locked by their writer, so
that those of dead writers are recognised. NOTE: nothing removes a path that was read from a file: `remove` takes a
directory and a name that its writer's own pattern produces.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pretune.core.errors import CheckpointError, ResourceError, UsageError, refuse_broken_link
from pretune.core.io.files import (
    MANIFEST,
    TEMPORARY_PREFIX,
    is_nested,
    make_temporary_name,
    read_json,
    sync,
    translate_write_errors,
)

TEMPORARY_NAME = re.compile(r"\.tmp-(?:[0-9a-f]{12}-)?[0-9a-f]{12}")


class HeldLock:
    """A locked descriptor until it is closed; forked workers, which may outlive their parent, close theirs at once."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor
        _HELD_LOCKS.add(self)

    def close(self) -> None:
        """Release the lock."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


_HELD_LOCKS: weakref.WeakSet[HeldLock] = weakref.WeakSet()


def _release_in_child() -> None:
    for held_lock in _HELD_LOCKS:
        held_lock.close()


os.register_at_fork(after_in_child=_release_in_child)


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
    with contextlib.closing(HeldLock(descriptor)):
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


class OwnedNames(NamedTuple):
    """Names, relative to a directory, that a writer replaces; nothing is read without the `main` one."""

    main: str
    pattern: re.Pattern[str]


def _compile_globs(*globs: str) -> re.Pattern[str]:
    """Return the pattern of relative names, from globs whose `*` and `?` match within one part of a name."""
    return re.compile("|".join(re.escape(glob).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") for glob in globs))


_MODEL_FILES = (
    *("config.json", MANIFEST, "generation_config.json", "modules.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "chat_template.jinja",
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"),
    *("config_sentence_transformers.json", "sentence_*_config.json", "head.safetensors"),
    *("adapter.json", "adapter_config.json", "adapter_model.safetensors", "model.safetensors"),
    *("model.body.safetensors", "model.int8.safetensors", "model.safetensors.index.json"),
    "model-?????-of-?????.safetensors",
)
_PARTNER_FOLDERS = ("generator", "backward")

OWNERS: Mapping[str | None, OwnedNames] = {
    None: OwnedNames(MANIFEST, _compile_globs(MANIFEST)),  # a manifest of other files is always replaced
    "model": OwnedNames(
        "config.json",
        _compile_globs(*_MODEL_FILES, *(f"{folder}/{file}" for folder in _PARTNER_FOLDERS for file in _MODEL_FILES)),
    ),
    "data": OwnedNames(
        "data.json",
        re.compile(
            r"data\.json|slice\.json|card\.(json|md)|MANIFEST\.json|tokenizer/[\w.-]+|units-\d+\.bin"
            r"|(keys|lengths|sizes|sources|held|signatures|sides)\.npy"
            r"|(train|valid)/(MANIFEST\.json|\d+\.(tokens|documents|sentences|words|sources|sides)\.npy)"
        ),
    ),
    "onnx": OwnedNames(MANIFEST, _compile_globs("onnx/*.onnx", "onnx/*.onnx_data")),
}

_COMMIT_NAME = re.compile(r"\.commit-[0-9a-f]{12}")
_JOURNAL = "JOURNAL.json"
_MAX_DEPTH = 2
"""Number of parts of the longest owned names."""

MERGE_SECONDS = 60.0
"""Time to wait for another process that moves its files into the same directory."""


@contextlib.contextmanager
def atomic_directory(
    path: str | os.PathLike[str], overwrite: bool = False, *, owner: str | None = None
) -> Iterator[Path]:
    """Yield a temporary directory to fill; it becomes `path` if the block succeeds and is removed if it fails.

    A new `path` appears by one rename. An existing one (empty, or not empty with `overwrite`) keeps its other files and
    receives the new ones one by one, after a commit from which on `recover` completes them. Its temporary directory
    lies inside, since `path` may be a mount. Leftovers of an earlier writer that was killed are removed first.

    `owner` is the writer, one of `OWNERS`: what an earlier write of it left is removed with the commit.
    """
    with translate_write_errors(path):
        refuse_broken_link(path)
        target = Path(path).resolve()
        if target.exists() and not target.is_dir():
            raise UsageError(
                f"cannot write '{os.fspath(path)}': it is a file, not a directory; choose another directory"
            )
        if file := next((parent for parent in target.parents if parent.is_file()), None):
            raise UsageError(f"cannot write '{os.fspath(path)}': '{file}' is a file, not a directory; move it")
        exists = target.is_dir()
        recover(target)
        remove_abandoned(target)
        if exists and not overwrite and any(not child.name.startswith(TEMPORARY_PREFIX) for child in target.iterdir()):
            raise UsageError(f"cannot write '{os.fspath(path)}': it exists and is not empty; choose another directory")
        new_parents = [parent for parent in target.parents if not parent.exists()]  # the innermost first
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_directory(target if exists else target.parent, target) as temporary:
            try:
                yield temporary
                if exists:
                    _merge(temporary, target, owner)
                else:
                    _sync_tree(temporary)
                    temporary.rename(target)
                    for folder in [target, *new_parents]:
                        sync(folder.parent)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                for folder in new_parents:
                    with contextlib.suppress(OSError):  # another process may have put files there
                        folder.rmdir()
                raise


def recover(directory: str | os.PathLike[str]) -> None:
    """Complete a write into a directory that was interrupted after its commit; in all others nothing is done.

    NOTE: call it wherever a directory is opened that is written by `atomic_directory` with `overwrite`.
    """
    folder = Path(directory)
    if not _list_commits(folder):
        return
    if not os.access(folder, os.W_OK):
        raise CheckpointError(f"{folder}: a save was interrupted; open it once as a user who may write there")
    with translate_write_errors(folder), _locked_for_merge(folder):
        for commit in _list_commits(folder):
            _complete(commit, folder)


def _list_commits(folder: Path) -> list[Path]:
    try:
        paths = sorted(path for path in folder.iterdir() if _COMMIT_NAME.fullmatch(path.name))
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return []
    return [path for path in paths if not path.is_symlink()]


@contextlib.contextmanager
def _locked_for_merge(folder: Path) -> Iterator[None]:
    """Hold the lock of a directory while files are moved into it; wait for another process that does."""
    if TEMPORARY_NAME.fullmatch(folder.name):  # of a writer around this one, which holds its lock
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.closing(HeldLock(descriptor)):
        deadline = time.monotonic() + MERGE_SECONDS
        while lock(descriptor) is False:
            if time.monotonic() > deadline:
                raise ResourceError(f"{folder}: another process has been writing for {MERGE_SECONDS:.0f} s; try again")
            time.sleep(0.01)
        yield


def _merge(temporary: Path, target: Path, owner: str | None) -> None:
    """Commit staged files to an existing directory and move them there."""
    files = list_files(temporary)
    for file in files:  # check everything before the commit
        _check_destination(target, file)
    (temporary / _JOURNAL).write_text(json.dumps({"owner": owner, "files": files}, allow_nan=False))
    _sync_tree(temporary)
    with _locked_for_merge(target):
        for earlier_commit in _list_commits(target):  # of a writer that was killed since this write began
            _complete(earlier_commit, target)
        commit = target / f".commit-{secrets.token_hex(6)}"
        temporary.rename(commit)
        sync(target)
        _complete(commit, target)


def _complete(commit: Path, target: Path) -> None:
    """Move committed files into a directory, which may be done in part; main files and then manifests last.

    These are also removed first, so that no other library reads a mixture after a kill, and then what else the owner
    replaces.
    """
    owner, files = _read_journal(commit / _JOURNAL)
    staged_files = [file for file in list_files(commit) if file != _JOURNAL]
    for file in staged_files:
        _check_destination(target, file)

    def rank(file: str) -> tuple[bool, bool, int, str]:
        path = PurePosixPath(file)
        return path.name == MANIFEST, path.name == owner.main, -len(path.parts), file

    owned_files = [file for file in list_files(target, _MAX_DEPTH) if owner.pattern.fullmatch(file)]
    stale_files = [file for file in owned_files if file not in files]
    for file in sorted([*stale_files, *staged_files], key=rank, reverse=True):
        if file in stale_files or any(rank(file)[:2]):
            (target / file).unlink(missing_ok=True)
            sync((target / file).parent)
    for folder in {(target / file).parent for file in stale_files} - {target}:
        with contextlib.suppress(OSError):  # it holds other files
            folder.rmdir()
    for file in sorted(staged_files, key=rank):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        if rank(file)[0]:  # the files must be on disk before their manifest
            sync((target / file).parent)
        os.replace(commit / file, target / file)
    for name, _, _ in os.walk(commit):
        (target / Path(name).relative_to(commit)).mkdir(parents=True, exist_ok=True)
    sync(target)
    leftover = target / make_name(target)
    commit.rename(leftover)
    shutil.rmtree(leftover)
    sync(target)


def _read_journal(path: Path) -> tuple[OwnedNames, set[str]]:
    """Return the owner of a commit, and all its files."""
    journal = read_json(path, CheckpointError)
    owner, files = journal.get("owner"), journal.get("files")
    is_owner = isinstance(owner, str | None) and owner in OWNERS
    if not is_owner or not isinstance(files, list) or not all(map(is_nested, files)):
        raise CheckpointError(f"{path}: not the journal of a save; remove '{path.parent.name}' or copy the directory")
    return OWNERS[owner], set(files)


def list_files(folder: Path, depth: int | None = None) -> list[str]:
    """Return the files below a directory by relative names, except temporary ones; links are not followed."""
    files: list[str] = []
    for place, folders, names in os.walk(folder):
        relative = Path(place).relative_to(folder)
        if depth is not None and len(relative.parts) + 1 >= depth:
            folders.clear()
        folders[:] = [
            name for name in folders if not TEMPORARY_NAME.fullmatch(name) and not _COMMIT_NAME.fullmatch(name)
        ]
        files += [(relative / name).as_posix() for name in names]
    return sorted(files)


def _check_destination(target: Path, file: str) -> None:
    """Raise a UsageError if a file cannot be moved to its name: a directory is there, or a link or file above it."""
    if (target / file).is_dir():
        raise UsageError(f"cannot write '{target / file}': it is a directory, not a file; move it")
    for parent in [target / parent for parent in PurePosixPath(file).parents][:-1]:
        if parent.is_symlink():
            raise UsageError(f"cannot write '{target / file}': '{parent}' is a symbolic link; remove it")
        if parent.exists() and not parent.is_dir():
            raise UsageError(f"cannot write '{target / file}': '{parent}' is a file; move it")


def _sync_tree(directory: Path) -> None:
    for folder, _, names in os.walk(directory):
        for name in names:
            sync(Path(folder, name))
        sync(Path(folder))
