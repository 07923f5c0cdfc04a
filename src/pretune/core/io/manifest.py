"""Manifests: the files of a directory with their sizes and hashes, to detect damage."""

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
    """Return the SHA-256 of a file's content, in hexadecimal; the file is read in chunks."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while data := file.read(2**20):  # NOTE: not file_digest, which never returns if there is nothing to read yet
            digest.update(data)
    return digest.hexdigest()


def write_manifest(
    directory: str | os.PathLike[str], names: Iterable[str], extra: Mapping[str, Any] | None = None
) -> None:
    """Write MANIFEST.json: {"files": {name: {"size", "sha256"}}, **extra}, for files directly inside `directory`."""
    folder = Path(directory)
    files: dict[str, dict[str, Any]] = {}
    for name in sorted(names):
        if not is_file_name(name) or name == MANIFEST:
            raise ValueError(f"a manifest cannot list {name!r}: it is not a simple file name")
        files[name] = {"size": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
    if extra and "files" in extra:
        raise ValueError("'files' is reserved and cannot be an extra key of a manifest")
    write_json(folder / MANIFEST, {"files": files, **(extra or {})})


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
