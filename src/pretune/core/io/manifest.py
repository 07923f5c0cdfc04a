"""Manifests: the list of a directory's files with their sizes and hashes, so that damage is always noticed."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pretune.core.errors import CheckpointError, explain_missing, suggest
from pretune.core.io.atomic import MANIFEST
from pretune.core.io.paths import is_file_name, open_regular, resolve_inside
from pretune.core.io.strict_json import read_json, write_json

_HASH = re.compile(r"[0-9a-f]{64}")


def sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file's content, in hexadecimal; the file is never whole in memory."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while data := file.read(2**20):  # NOTE: not file_digest, which never ends where a file has nothing to read yet
            digest.update(data)
    return digest.hexdigest()


def write_manifest(
    directory: str | os.PathLike[str], names: Iterable[str], extra: Mapping[str, Any] | None = None
) -> None:
    """Write MANIFEST.json: {"files": {name: {"size", "sha256"}}, **extra}, for files right inside `directory`."""
    folder = Path(directory)
    files: dict[str, dict[str, Any]] = {}
    for name in sorted(names):
        if not is_file_name(name) or name == MANIFEST:
            raise ValueError(f"a manifest cannot list {name!r}: it is not a plain file name")
        files[name] = {"size": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
    if extra and "files" in extra:
        raise ValueError("'files' of a manifest cannot be given as an extra")
    write_json(folder / MANIFEST, {"files": files, **(extra or {})})


def check_manifest(directory: str | os.PathLike[str], hashes: bool = True) -> dict[str, Any]:
    """Check every file that MANIFEST.json lists, and return the manifest; the first bad part is a CheckpointError.

    Without `hashes` only presence and size are checked, which is fast for any size.
    """
    try:
        return _check_folder(Path(directory), hashes)
    except OSError as fault:
        raise CheckpointError(f"{fault.filename or directory}: cannot be read: {fault.strerror}") from fault


def _check_folder(folder: Path, hashes: bool) -> dict[str, Any]:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: {explain_missing(folder, 'directory')}")
    where = folder / MANIFEST
    if not where.exists():
        raise CheckpointError(f"{folder}: no {MANIFEST}, so the directory is incomplete; copy or make it again")
    manifest = read_json(where, CheckpointError)
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise CheckpointError(f"{where}: 'files' is missing or not an object{suggest('files', manifest)}")
    for name, entry in files.items():
        file = resolve_inside(folder, name, CheckpointError, where)
        if name == MANIFEST:
            raise CheckpointError(f"{where}: lists itself, which no manifest does; copy or make the directory again")
        size, digest = _read_entry(entry, name, where)
        _check_file(file, size, digest if hashes else None, where)
    return manifest


def _read_entry(entry: object, name: str, location: Path) -> tuple[int, str]:
    match entry:
        case {"size": int(size), "sha256": str(digest)} if size >= 0 and size is not True and _HASH.fullmatch(digest):
            return size, digest
    raise CheckpointError(f"{location}: the entry of '{name}' needs a 'size' in bytes and a 'sha256' of 64 digits")


def _check_file(file: Path, size: int, digest: str | None, location: Path) -> None:
    remedy = "copy or make the directory again"
    if not file.is_file():
        raise CheckpointError(f"{file}: missing, though {MANIFEST} lists it; {remedy}")
    found = file.stat().st_size
    if found != size:
        raise CheckpointError(f"{file}: has {found} bytes, but {MANIFEST} says {size}; {remedy}")
    if digest is not None and sha256(file) != digest:
        raise CheckpointError(f"{file}: its content is not what {MANIFEST} says (SHA-256 differs); {remedy}")
