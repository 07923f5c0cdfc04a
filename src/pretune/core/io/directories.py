"""Directories written as a whole.

A new directory appears by one rename. Into an existing one the files are moved one by one, which a kill may interrupt:
so all of them are staged in a folder inside it (`.tmp-…`), with a journal that lists them. Once that folder is renamed
(`.commit-…`), the new state holds, and whoever opens the directory next completes it (`recover`).

NOTE: what a write removes is decided by the patterns of its owner, which are code, never by the journal. They are here,
and not with the writers, because whoever opens a directory completes an interrupted write into it.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pretune.core.errors import CheckpointError, ResourceError, UsageError, refuse_broken_link
from pretune.core.io.files import (
    MANIFEST,
    TEMPORARY_PREFIX,
    sync,
    translate_write_errors,
)
from pretune.core.io.strict_json import read_json
from pretune.core.io.temporary import (
    TEMPORARY_NAME,
    holding,
    is_nested,
    lock,
    make_name,
    remove_abandoned,
    temporary_directory,
)


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
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"),
    *("config_sentence_transformers.json", "sentence_*_config.json", "head.safetensors"),
    *("adapter.json", "adapter_config.json", "adapter_model.safetensors", "model.safetensors"),
    *("model.body.safetensors", "model.safetensors.index.json", "model-?????-of-?????.safetensors"),
)
_PARTNER_FOLDERS = ("generator", "backward")

NO_OWNER = OwnedNames(MANIFEST, _compile_globs(MANIFEST))  # a manifest of other files is always replaced

OWNERS = {
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
        if exists and not overwrite and any(not child.name.startswith(TEMPORARY_PREFIX) for child in target.iterdir()):
            raise UsageError(f"cannot write '{os.fspath(path)}': it exists and is not empty; choose another directory")
        new_parents = [parent for parent in target.parents if not parent.exists()]  # the innermost first
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target)
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
    with holding(descriptor):
        deadline = time.monotonic() + MERGE_SECONDS
        while lock(descriptor) is False:
            if time.monotonic() > deadline:
                raise ResourceError(f"{folder}: another process has been writing for {MERGE_SECONDS:.0f} s; try again")
            time.sleep(0.01)
        yield


def _merge(temporary: Path, target: Path, owner: str | None) -> None:
    """Commit staged files to an existing directory and move them there."""
    files = _list_files(temporary)
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
    staged_files = [file for file in _list_files(commit) if file != _JOURNAL]
    for file in staged_files:
        _check_destination(target, file)

    def rank(file: str) -> tuple[bool, bool, int, str]:
        path = PurePosixPath(file)
        return path.name == MANIFEST, path.name == owner.main, -len(path.parts), file

    stale_files = [file for file in _list_owned(target, owner) if file not in files]
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
    is_owner = owner is None or (isinstance(owner, str) and owner in OWNERS)
    if not is_owner or not isinstance(files, list) or not all(map(is_nested, files)):
        raise CheckpointError(f"{path}: not the journal of a save; remove '{path.parent.name}' or copy the directory")
    if owner is None:
        return NO_OWNER, set(files)
    return OWNERS[owner], set(files)


def _list_files(folder: Path, depth: int | None = None) -> list[str]:
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


def _list_owned(target: Path, owner: OwnedNames) -> list[str]:
    return [file for file in _list_files(target, _MAX_DEPTH) if owner.pattern.fullmatch(file)]


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
