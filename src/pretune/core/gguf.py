"""GGUF files, the format of llama.cpp (versions 2 and 3): metadata, and the places of tensors.

    header | metadata: key, type, value | tensors: name, shape, type, offset | data, aligned

No length in a file is trusted: each is compared with the bytes that are left before anything is built from it.
"""

import functools
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.core.io import open_regular

T = TypeVar("T")

MAGIC = b"GGUF"
MAX_ENTRIES = 1 << 16
"""Largest number of metadata entries, and of tensors."""
MAX_DIMENSIONS = 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor of a file: its shape as torch has it, the number of its type, and its first byte in the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class GgufFile:
    """The header of a GGUF file."""

    path: Path
    size: int
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorRecord] = field(default_factory=dict)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a value of the metadata. Raises `CheckpointError` if it is missing without default, or no `kind`."""
        value = self.metadata.get(key, default)
        if type(value) is not kind:
            problem = "is missing" if value is None else f"= {format_value(value)}: must be of type {kind.__name__}"
            raise CheckpointError(f"{self.path}: key '{key}' {problem}")
        return value

    def get_list(self, key: str, kind: type[T]) -> list[T]:
        """Return a list of the metadata with values of one kind."""
        values = self.get(key, list)
        if any(type(value) is not kind for value in values):
            raise CheckpointError(f"{self.path}: key '{key}' must be a list of values of type {kind.__name__}")
        return values


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file. Raises `CheckpointError` for a damaged or unsupported one."""
    try:
        facts = path.stat()
        return _read_cached(path, facts.st_size, facts.st_mtime_ns)
    except OSError as fault:
        raise CheckpointError(f"{path}: cannot be read: {fault.strerror or fault}") from fault


@functools.lru_cache(maxsize=2)
def _read_cached(path: Path, size: int, time: int) -> GgufFile:
    with open_regular(path) as raw:
        size = os.fstat(raw.fileno()).st_size
        if size < 24:
            raise CheckpointError(f"{path}: not a GGUF file: it has {size} bytes")
        with mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(path, data).parse()


class _Parser:
    """Reader of a header, from a position on."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.place, self.size = path, data, 0, len(data)

    def parse(self) -> GgufFile:
        magic, version, tensor_count, entry_count = self.take("4sIQQ")
        if magic != MAGIC:
            raise self.make_error("not a GGUF file")
        if version not in (2, 3):
            raise self.make_error(f"GGUF version {version} is not supported (allowed: 2 and 3, little-endian)")
        for count, title in ((tensor_count, "tensors"), (entry_count, "metadata entries")):
            if count > MAX_ENTRIES:
                raise self.make_error(f"claims to have {count} {title}; the limit is {MAX_ENTRIES}")
        metadata: dict[str, object] = {}
        for _ in range(entry_count):
            key = self.take_text()
            if key in metadata:
                raise self.make_error(f"key {format_value(key)} appears twice")
            metadata[key] = self.take_value(self.take("I")[0], key)
        file = GgufFile(self.path, self.size, metadata)
        records: dict[str, TensorRecord] = {}
        for _ in range(tensor_count):
            record = self.take_tensor()
            if record.name in records:
                raise self.make_error(f"tensor {format_value(record.name)} appears twice")
            records[record.name] = record
        alignment = file.get("general.alignment", int, 32)
        if not 1 <= alignment <= MAX_ENTRIES or alignment & (alignment - 1):
            raise self.make_error(f"general.alignment = {alignment}: must be a power of two up to {MAX_ENTRIES}")
        if file.get("split.count", int, 0) > 1:
            raise self.make_error("one part of a model in several files; join them into one")
        start = -(-self.place // alignment) * alignment
        tensors = {
            name: TensorRecord(name, record.shape, record.kind, start + record.start)
            for name, record in records.items()
        }
        return GgufFile(self.path, self.size, metadata, tensors)

    def take(self, layout: str) -> tuple[Any, ...]:
        """Read some numbers."""
        size = struct.calcsize(f"<{layout}")
        if size > self.size - self.place:
            raise self.make_error(f"the file ends inside its header, at byte {self.size}")
        self.place += size
        return struct.unpack_from(f"<{layout}", self.data, self.place - size)

    def take_text(self) -> str:
        return self.take_texts(1)[0]

    def take_texts(self, count: int) -> list[str]:
        """Read texts, each after its length."""
        data, place, texts = self.data, self.place, []
        for _ in range(count):
            end = place + 8
            length = _LENGTH.unpack_from(data, place)[0] if end <= self.size else self.size
            if length > self.size - end:
                raise self.make_error(f"the file ends inside a text of its header, at byte {self.size}")
            place = end + length
            try:
                texts.append(data[end:place].decode())
            except UnicodeDecodeError:
                raise self.make_error(f"the text at byte {end} is not UTF-8") from None
        self.place = place
        return texts

    def take_value(self, kind: int, key: str) -> Any:
        """Read a value; lists of lists are not supported."""
        if kind == _STRING:
            return self.take_text()
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])[0]
        inner, count = self.take("IQ") if kind == _ARRAY else (kind, 0)
        if inner not in _SCALARS and inner != _STRING:
            raise self.make_error(f"key {format_value(key)} has type {inner}, which is unknown")
        size = 8 if inner == _STRING else struct.calcsize(_SCALARS[inner])
        if count * size > self.size - self.place:
            raise self.make_error(f"key {format_value(key)} claims to have {count} values, more than the file has")
        return self.take_texts(count) if inner == _STRING else list(self.take(f"{count}{_SCALARS[inner]}"))

    def take_tensor(self) -> TensorRecord:
        name, (dimensions,) = self.take_text(), self.take("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.make_error(f"tensor {format_value(name)} has {dimensions} dimensions (allowed: 1 to 4)")
        shape = self.take(f"{dimensions}Q")[::-1]
        kind, offset = self.take("IQ")
        return TensorRecord(name, shape, kind, offset)

    def make_error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {problem}")
