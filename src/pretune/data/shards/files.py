"""Files of prepared data: the index (data.json), and .npy arrays that grow and are memory-mapped with validation.

`numpy.load` reads the files of `NpyWriter`. `open_npy` parses the header with a regular expression and evaluates
nothing, so a damaged or malicious file gives a one-line error and uses no memory. The index has the tokenizer, the
settings, the sources, and the shards of each split.
"""

import contextlib
import dataclasses
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NotRequired, Self, TypedDict

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pretune.core.config import Count, check_path, check_record
from pretune.core.errors import DataError, UsageError, explain_missing
from pretune.core.io import is_file_name, open_regular, read_json, recover, translate_write_errors, write_json

HEADER_BYTES = 128
"""Size of the header: a multiple of 64, as the format requires, with space for any length."""

_MAGIC = b"\x93NUMPY\x01\x00"
_PATTERN = re.compile(
    r"\{'descr': '([<>|=]\w{1,8})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,80})\), \} *\n"
)
REMEDY = "prepare the data again, or copy the directory again"


class AtomicWriter(ABC):
    """Context manager of a writer: completes its files at the end of the block, abandons them after an error."""

    @abstractmethod
    def close(self) -> object:
        """Complete the files."""

    @abstractmethod
    def abandon(self) -> None:
        """Close the files without completing them; after `close` nothing is left to do."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self.abandon()


class NpyWriter(AtomicWriter):
    """Writer of a one-dimensional array of initially unknown length; `close` writes the length into the header."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self.path, self.dtype, self.count = path, np.dtype(dtype), 0
        with translate_write_errors(path):
            self._file = path.open("xb")
            self._write(_build_header(self.dtype, 0))

    def append(self, values: NDArray[np.generic]) -> None:
        """Append values, cast to the dtype of the file without a range check."""
        with translate_write_errors(self.path):
            self._write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.count += len(values)

    def close(self) -> None:
        """Write the length into the header, and close the file."""
        with translate_write_errors(self.path):
            self._file.seek(0)
            self._write(_build_header(self.dtype, self.count))
            self._file.close()

    def abandon(self) -> None:
        """Close the file without completing it: according to its header it is empty."""
        with contextlib.suppress(OSError):  # full disk; already reported
            self._file.close()

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)


def open_npy(
    path: Path, dtype: DTypeLike, count: int | None = None, *, width: int | None = None
) -> NDArray[np.generic]:
    """Memory-map an array, read-only.

    Args:
        path: The .npy file.
        dtype: Required type.
        count: Required number of values, or of rows; None for any.
        width: Required number of values per row; None for a one-dimensional array.

    Raises:
        DataError: The file is missing, or its type, shape or size is not the required one.
    """
    expected_dtype, row = np.dtype(dtype), 1 if width is None else width
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            kind, fortran_order, shape, start = _read_header(file, path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {REMEDY}") from None
    except OSError as fault:
        raise DataError(f"{path}: cannot be read: {fault.strerror}") from fault
    if kind != expected_dtype.str:
        raise DataError(f"{path}: has values of type '{kind}', expected '{expected_dtype.str}'; {REMEDY}")
    if fortran_order == "True" or not re.fullmatch(r"\d{1,18}," + ("" if width is None else f" {width}"), shape):
        layout = "one dimension" if width is None else f"rows of {width} values"
        raise DataError(f"{path}: has the shape ({shape}), expected {layout}; {REMEDY}")
    values = int(shape.partition(",")[0])
    if count is not None and values != count:
        raise DataError(f"{path}: has {values} {'values' if width is None else 'rows'}, expected {count}; {REMEDY}")
    total_bytes = start + values * row * expected_dtype.itemsize
    if size != total_bytes:
        raise DataError(f"{path}: has {size} bytes, expected {total_bytes} according to its header; {REMEDY}")
    if not values:  # an empty file region cannot be mapped
        return np.empty(0 if width is None else (0, row), expected_dtype)
    sizes = (values,) if width is None else (values, row)
    return np.memmap(path, expected_dtype, mode="r", offset=start, shape=sizes).view(np.ndarray)


def read_npy(file: BinaryIO, path: Path, *dtypes: str) -> NDArray[Any]:
    """Return the next array of a file of several: one dimension, one of the types; raise a DataError for another."""
    kind, fortran_order, shape, _ = _read_header(file, path)
    if kind not in dtypes or fortran_order == "True" or not re.fullmatch(r"\d{1,18},", shape):
        raise DataError(f"{path}: has an array of type '{kind}' and shape ({shape}); {REMEDY}")
    size = int(shape[:-1]) * np.dtype(kind).itemsize
    if size > os.fstat(file.fileno()).st_size - file.tell():
        raise DataError(f"{path}: is too short for its arrays; {REMEDY}")
    return np.frombuffer(file.read(size), kind)


def _read_header(file: BinaryIO | io.FileIO, path: Path) -> tuple[str, str, str, int]:
    """Read the header of an array; return its type, order and shape as text, and the number of bytes."""
    start = file.read(10) or b""
    length = int.from_bytes(start[8:], "little")
    text = (file.read(length) or b"").decode("latin1")
    match = _PATTERN.fullmatch(text)
    if not start.startswith(_MAGIC) or match is None or len(text) != length:
        raise DataError(f"{path}: not a .npy file of numbers; {REMEDY}")
    kind, fortran_order, shape = match.groups()
    return kind, fortran_order, shape, 10 + length


def _build_header(dtype: np.dtype[np.generic], count: int) -> bytes:
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    text_bytes = HEADER_BYTES - len(_MAGIC) - 2
    return _MAGIC + text_bytes.to_bytes(2, "little") + text.ljust(text_bytes - 1).encode() + b"\n"


INDEX_FILE = "data.json"
FORMAT = 1

_INDEX_REMEDY = "prepare the data again"
_SHARD = re.compile(r"[0-9]{5,9}")


def choose_token_dtype(vocab: int) -> str:
    """Return the smallest dtype for the token ids of a vocabulary; raise a UsageError for an impossible size.

    >>> choose_token_dtype(30_522), choose_token_dtype(65_536), choose_token_dtype(250_002)
    ('uint16', 'uint16', 'uint32')
    """
    if not 0 < vocab <= 2**32:
        raise UsageError(f"vocab must be from 1 to 2**32, got {vocab}")
    return "uint16" if vocab <= 2**16 else "uint32"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """Name and counts of a shard; the name is the number that its file names start with."""

    name: str
    documents: int
    tokens: int
    sentences: int
    pairs: int = 0  # documents with two sides


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardSplit:
    """The shards of a split, in order; `bytes` is the size of the source text."""

    shards: tuple[ShardFacts, ...]
    bytes: int = 0

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def sentences(self) -> int:
        return sum(shard.sentences for shard in self.shards)

    @property
    def pairs(self) -> int:
        return sum(shard.pairs for shard in self.shards)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataIndex:
    """The content of data.json."""

    tokenizer_sha256: str
    vocab: int
    dtype: str  # uint16 or uint32
    fingerprint: str
    sources: tuple[str, ...]  # names, in the order of source numbers
    splits: Mapping[str, ShardSplit]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class ShardRecord(TypedDict):
    """A shard in data.json."""

    name: str
    documents: Count
    tokens: Count
    sentences: Count
    pairs: NotRequired[Count]


_SPLIT_SUMS: tuple[Literal["documents", "tokens", "sentences"], ...] = ("documents", "tokens", "sentences")
"""Fields of a split that are sums over its shards."""


class SplitRecord(TypedDict):
    """A split in data.json."""

    documents: Count
    tokens: Count
    sentences: Count
    bytes: Count
    shards: list[ShardRecord]


class CorpusRecord(TypedDict):
    """Name and hash of every source."""

    train: list[tuple[str, str]]
    valid: list[tuple[str, str]]


class SettingsRecord(TypedDict, total=False):
    """The settings of `prepare` in data.json, as far as a run needs them."""

    corpus: CorpusRecord


class IndexRecord(TypedDict):
    """data.json."""

    tokenizer_sha256: str
    vocab: Count
    dtype: Literal["uint16", "uint32"]
    fingerprint: str
    sources: list[str]
    splits: dict[str, SplitRecord]
    settings: SettingsRecord


def write_index(directory: Path, index: DataIndex) -> None:
    """Write `index` as data.json into a directory of shards; `read_index` returns an equal value."""
    splits = {
        name: {
            **{field: getattr(split, field) for field in (*_SPLIT_SUMS, "bytes")},
            "shards": [_to_json(shard) for shard in split.shards],
        }
        for name, split in index.splits.items()
    }
    data = {field.name: getattr(index, field.name) for field in dataclasses.fields(index)}
    data |= {"sources": list(index.sources), "settings": dict(index.settings), "splits": splits}
    write_json(directory / INDEX_FILE, {"format": FORMAT, **data})


def _to_json(shard: ShardFacts) -> dict[str, Any]:
    """Return the JSON form of a shard; without pairs, the field `pairs` is omitted."""
    return {name: value for name, value in dataclasses.asdict(shard).items() if name != "pairs" or value}


def read_index(directory: Path) -> DataIndex:
    """Read data.json of a directory.

    Raises:
        DataError: The directory or the file is missing, or a field is invalid; the message names the field.
    """
    recover(directory)
    path = check_path(directory, DataError) / INDEX_FILE
    if not directory.is_dir():
        raise DataError(
            f"{directory}: {explain_missing(directory, 'directory', '; pass the output of `pretune prepare`')}"
        )
    if not path.is_file():
        raise DataError(
            f"{directory}: has no {INDEX_FILE}, so it is not prepared data; create it with `pretune prepare`"
        )
    data = read_json(path, DataError)
    if data.get("format") != FORMAT:
        raise DataError(f"{path}: has format {data.get('format')!r:.40}, this version reads {FORMAT}; {_INDEX_REMEDY}")
    record = check_record(IndexRecord, data, DataError, str(path))
    max_vocab = np.iinfo(record["dtype"]).max + 1
    if not 0 < record["vocab"] <= max_vocab:
        raise DataError(
            f"{path}: 'vocab' is {record['vocab']}, but must be from 1 to {max_vocab} for {record['dtype']}; "
            f"{_INDEX_REMEDY}"
        )
    return DataIndex(
        tokenizer_sha256=record["tokenizer_sha256"],
        vocab=record["vocab"],
        dtype=record["dtype"],
        fingerprint=record["fingerprint"],
        sources=tuple(record["sources"]),
        splits={name: _build_split(split, name, path) for name, split in record["splits"].items()},
        settings={**record["settings"]},
    )


def _build_split(record: SplitRecord, name: str, path: Path) -> ShardSplit:
    if not (name.isidentifier() and is_file_name(name)):
        raise DataError(f"{path}: 'splits' contains {name[:40]!r}, which is not a valid split; {_INDEX_REMEDY}")
    if not all(_SHARD.fullmatch(shard["name"]) for shard in record["shards"]):
        raise DataError(f"{path}: a shard of split '{name}' has no valid 'name' (5 to 9 digits); {_INDEX_REMEDY}")
    fields = [field.name for field in dataclasses.fields(ShardFacts)]
    shards = [{field: value for field, value in shard.items() if field in fields} for shard in record["shards"]]
    split = ShardSplit(shards=tuple(ShardFacts(**shard) for shard in shards), bytes=record["bytes"])  # type: ignore[arg-type]
    for field in _SPLIT_SUMS:
        if record[field] != getattr(split, field):
            raise DataError(
                f"{path}: split '{name}' has {record[field]} {field}, but its shards have {getattr(split, field)}; "
                f"{_INDEX_REMEDY}"
            )
    return split
