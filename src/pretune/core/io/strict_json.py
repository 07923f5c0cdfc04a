"""Strict JSON, and manifests: the files of a directory with their sizes and hashes, to detect damage."""

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pretune.core.errors import CheckpointError, PretuneError, explain_missing, suggest
from pretune.core.io.files import MANIFEST, atomic_write, is_file_name, open_regular, read_bounded, resolve_inside

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 100
"""Levels of nesting: far more than any valid file has, far fewer than the recursion limit."""
FORMAT: Mapping[str, Any] = {"format": 2}
"""First entry of run.json, task.json and state.json."""


def read_json(path: str | os.PathLike[str], error: type[PretuneError], limit: int = MAX_BYTES) -> dict[str, Any]:
    """Read a file that holds one JSON object; any problem is raised as `error`."""
    name, content = os.fspath(path), read_bounded(path, error, limit)
    try:
        text = content.decode()
    except UnicodeDecodeError as fault:
        raise error(f"{name}: not UTF-8 at byte {fault.start}") from None
    data = parse_json(text, error, name)
    if not isinstance(data, dict):
        raise error(f"{name}: expected a JSON object at the top level, got {_describe_type(data)}")
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


def parse_json(text: str, error: type[PretuneError], location: str) -> Any:
    """Parse strict JSON text of any type; `location` names it in errors."""

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


def _describe_type(data: object) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(data), "a number")


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
    extra: Mapping[str, Any] | None = None,
    *,
    entries: Mapping[str, Any] | None = None,
) -> None:
    """Write MANIFEST.json: {"files": {name: {"size", "sha256"}}, **extra}, for files directly inside `directory`.

    `entries` are those of files whose hashes are known.
    """
    folder = Path(directory)
    files: dict[str, Any] = dict(entries or {})
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
