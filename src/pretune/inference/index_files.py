"""Files of a vector index. The manifest alone says which files belong to it.

    MANIFEST.json                             sizes and hashes of the files of the present generation
    index.json, then index-00001.json, …      metadata, one file for each generation
    vectors-00000.npy, texts-00000.jsonl      part: what one addition brought
    graph-00001.safetensors                   graph or cells over all vectors, one file for each generation

An addition writes files under new names, then replaces the manifest: a kill leaves one generation or the other. Files
of the previous generation are removed when no reader holds it, those of a killed writer by the next one.
"""

import contextlib
import fcntl
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NotRequired, TypedDict

from pretune.core import config, io, log
from pretune.core.errors import CheckpointError, explain_missing
from pretune.core.io.directories import lock
from pretune.core.run_dir import RunLock
from pretune.inference.pooling import Embedding

FORMAT_VERSION = 1
MAX_HASHED_BYTES = 2**28
"""Size up to which an index is hashed when opened; of larger ones only file sizes are checked."""

WRITER_SECONDS = 300.0
"""Time to wait for another writer of the same index."""

_METADATA_NAME = r"index(-\d{5,9})?\.json"
_GRAPH_NAME = r"graph-\d{5,9}\.safetensors"
_PART_NAME = r"vectors-\d{5,9}\.npy|texts-\d{5,9}\.jsonl"


class IndexMetadata(TypedDict):
    """Contents of index.json."""

    form: Literal[1]
    model: str
    fingerprint: str
    embedding: Embedding
    width: Annotated[int, config.Ge(1), config.Le(2**24)]
    method: Literal["exact", "hnsw", "ivf"]
    parts: list[Annotated[int, config.Ge(1), config.Le(2**40)]]
    cut: config.Count
    query_prompt: NotRequired[str]
    file: NotRequired[str]  # the graph, whose name follows from the parts


class IndexRow(TypedDict):
    """Line of a file of texts."""

    id: str
    text: str


class Lease:
    """Shared lock of a reader on the metadata file of its generation, until it is collected."""

    def __init__(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        self.release = weakref.finalize(self, os.close, descriptor)
        with contextlib.suppress(OSError):  # a file system without locks, or a writer that removes the generation
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


@dataclass(frozen=True)
class IndexGeneration:
    """IndexGeneration of an index, verified: its metadata file, and the entries of all its files in the manifest."""

    metadata_file: Path
    metadata: IndexMetadata
    entries: Mapping[str, object]
    lease: Lease


def is_index(directory: Path) -> bool:
    """Return whether a directory holds an index."""
    try:
        return any(re.fullmatch(_METADATA_NAME, path.name) for path in directory.iterdir())
    except OSError:
        return False


def open_generation(directory: Path) -> IndexGeneration:
    """Open the present generation; raises a CheckpointError if it is damaged, or the directory is not an index."""
    while True:
        stamp = _get_stamp(directory)
        try:
            return _open_generation(directory)
        except CheckpointError:
            if _get_stamp(directory) == stamp:
                raise


def _get_stamp(directory: Path) -> tuple[int, int] | None:
    """Return what identifies the file of the manifest."""
    with contextlib.suppress(OSError):
        status = (directory / io.MANIFEST).stat()
        return status.st_ino, status.st_mtime_ns
    return None


def _open_generation(directory: Path) -> IndexGeneration:
    if not is_index(directory):
        hint = "" if directory.is_dir() else f"; {explain_missing(directory, 'directory')}"
        raise CheckpointError(f"{directory}: not an index{hint}; build one with `pretune index`")
    metadata_names = [name for name in _read_entries(directory) if re.fullmatch(_METADATA_NAME, name)]
    if len(metadata_names) != 1:
        raise CheckpointError(f"{directory / io.MANIFEST}: lists {len(metadata_names)} files of metadata, not one")
    metadata_file = directory / metadata_names[0]
    lease = Lease(metadata_file)
    entries = io.check_manifest(directory, hashes=_measure_size(directory) <= MAX_HASHED_BYTES)["files"]
    metadata = config.read_record(IndexMetadata, metadata_file, CheckpointError)
    if not metadata["parts"]:
        raise CheckpointError(f"{metadata_file}: 'parts' is empty; an index has at least one text")
    names = list_files(metadata)
    if metadata.get("file", names[-1]) != names[-1]:
        raise CheckpointError(f"{metadata_file}: 'file' must be {names[-1]!r}, got {metadata['file']!r:.60}")
    for name in [metadata_file.name, *names]:
        if name not in entries:
            raise CheckpointError(f"{metadata_file}: {name!r:.60} is not in {io.MANIFEST}")
    return IndexGeneration(metadata_file, metadata, {name: entries[name] for name in names}, lease)


def _measure_size(directory: Path) -> int:
    """Return the bytes of the files; a writer may remove some meanwhile."""
    size = 0
    for file in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


def _read_entries(directory: Path) -> dict[str, object]:
    entries = io.read_json(directory / io.MANIFEST, CheckpointError).get("files")
    if not isinstance(entries, dict):
        raise CheckpointError(f"{directory / io.MANIFEST}: 'files' is missing or not an object")
    return entries


def list_files(metadata: IndexMetadata) -> list[str]:
    """List the files of a generation, except its metadata; the graph, if there is one, is the last.

    >>> list_files({"method": "hnsw", "parts": [3]})
    ['vectors-00000.npy', 'texts-00000.jsonl', 'graph-00000.safetensors']
    """
    numbers = range(len(metadata["parts"]))
    names = [name for number in numbers for name in (f"vectors-{number:05}.npy", f"texts-{number:05}.jsonl")]
    return names if metadata["method"] == "exact" else [*names, f"graph-{numbers[-1]:05}.safetensors"]


@contextlib.contextmanager
def lock_for_writing(directory: Path) -> Iterator[None]:
    """Hold the right to add to an index, after the present writer; remove what killed writers left."""
    with RunLock(directory, on_warning=log.warn, wait_seconds=WRITER_SECONDS):
        io.sweep(directory)
        yield


def publish(
    directory: Path, metadata: IndexMetadata, files: Mapping[str, bytes], previous: IndexGeneration | None = None
) -> None:
    """Write the files of a new index, or those of the next generation; the lock must be held for the latter."""
    if previous is None:
        with io.atomic_directory(directory) as folder:
            _write_generation(folder, "index.json", metadata, files, {})
        return
    names = list_files(metadata)
    entries = {name: entry for name, entry in previous.entries.items() if name in names}
    with io.translate_write_errors(directory):
        try:
            _write_generation(directory, f"index-{len(metadata['parts']) - 1:05}.json", metadata, files, entries)
        finally:
            previous.lease.release()
            _remove_unlisted(directory)


def _write_generation(
    folder: Path, name: str, metadata: IndexMetadata, files: Mapping[str, bytes], entries: Mapping[str, object]
) -> None:
    for file, data in files.items():
        io.atomic_write(folder / file, data)
    io.write_json(folder / name, metadata)
    io.write_manifest(folder, [*files, name], entries=entries)


def _remove_unlisted(directory: Path) -> None:
    """Remove files that the manifest does not list; metadata and graphs only where no reader holds a generation."""
    entries = _read_entries(directory)
    names = sorted(path.name for path in directory.iterdir() if path.name not in entries)
    with contextlib.ExitStack() as stack:
        metadata_names = [name for name in names if re.fullmatch(_METADATA_NAME, name)]
        free_names = [name for name in metadata_names if _try_lock(directory / name, stack)]
        is_free = free_names == metadata_names
        for name in [name for name in names if is_free or not re.fullmatch(_GRAPH_NAME, name)]:
            if re.fullmatch(f"{_GRAPH_NAME}|{_PART_NAME}", name):
                io.remove(directory, name, f"{_GRAPH_NAME}|{_PART_NAME}")
        for name in free_names:
            io.remove(directory, name, _METADATA_NAME)


def _try_lock(path: Path, stack: contextlib.ExitStack) -> bool:
    """Lock a metadata file, and return False if a reader holds it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    stack.callback(os.close, descriptor)
    return lock(descriptor) is not False
