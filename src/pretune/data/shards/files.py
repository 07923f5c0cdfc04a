"""Files of prepared data: the index (data.json), and .npy arrays that grow and are memory-mapped with validation.

`numpy.load` reads the files of `NpyWriter`. `open_npy` parses the header with a regular expression and evaluates
nothing, so a damaged or malicious file gives a one-line error and uses no memory. The index has the tokenizer, the
settings, the sources, and the shards of each split.
"""

import contextlib
import dataclasses
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pretune.core.errors import DataError, UsageError, explain_missing, suggest
from pretune.core.io import open_regular, read_json, recover, translate_write_errors, write_json

HEADER_BYTES = 128
"""Size of the header: a multiple of 64, as the format requires, with space for any length."""

_MAGIC = b"\x93NUMPY\x01\x00"
_PATTERN = re.compile(
    r"\{'descr': '([<>|=]\w{1,8})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,80})\), \} *\n"
)
_REMEDY = "prepare the data again, or copy the directory again"


class AtomicWriter(ABC):
    """Context manager of a writer: completes its files at the end of the block, abandons them after an error."""

    @abstractmethod
    def close(self) -> object:
        """Complete the files."""

    @abstractmethod
    def abandon(self) -> None:
        """Close the files without completing them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
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
            start = file.read(10)
            length = int.from_bytes(start[8:], "little")
            text = file.read(length).decode("latin1")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {_REMEDY}") from None
    except OSError as fault:
        raise DataError(f"{path}: cannot be read: {fault.strerror}") from fault
    match = _PATTERN.fullmatch(text)
    if not start.startswith(_MAGIC) or match is None or len(text) != length:
        raise DataError(f"{path}: not a .npy file of numbers; {_REMEDY}")
    kind, fortran_order, shape = match.groups()
    if kind != expected_dtype.str:
        raise DataError(f"{path}: has values of type '{kind}', expected '{expected_dtype.str}'; {_REMEDY}")
    if fortran_order == "True" or not re.fullmatch(r"\d{1,18}," + ("" if width is None else f" {width}"), shape):
        layout = "one dimension" if width is None else f"rows of {width} values"
        raise DataError(f"{path}: has the shape ({shape}), expected {layout}; {_REMEDY}")
    values = int(shape.partition(",")[0])
    if count is not None and values != count:
        raise DataError(f"{path}: has {values} {'values' if width is None else 'rows'}, expected {count}; {_REMEDY}")
    total_bytes = 10 + length + values * row * expected_dtype.itemsize
    if size != total_bytes:
        raise DataError(f"{path}: has {size} bytes, expected {total_bytes} according to its header; {_REMEDY}")
    if not values:  # an empty file region cannot be mapped
        return np.empty(0 if width is None else (0, row), expected_dtype)
    sizes = (values,) if width is None else (values, row)
    return np.memmap(path, expected_dtype, mode="r", offset=10 + length, shape=sizes).view(np.ndarray)


def _build_header(dtype: np.dtype[np.generic], count: int) -> bytes:
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    text_bytes = HEADER_BYTES - len(_MAGIC) - 2
    return _MAGIC + text_bytes.to_bytes(2, "little") + text.ljust(text_bytes - 1).encode() + b"\n"


INDEX_FILE = "data.json"
FORMAT = 1
DTYPES = ("uint16", "uint32")

_INDEX_REMEDY = "prepare the data again"
_SHARD = re.compile(r"\d{5,9}")


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
    dtype: str  # one of DTYPES
    fingerprint: str
    sources: tuple[str, ...]  # names, in the order of source numbers
    splits: Mapping[str, ShardSplit]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def write_index(directory: Path, index: DataIndex) -> None:
    """Write `index` as data.json into a directory of shards; `read_index` returns an equal value."""
    splits = {
        name: {
            "documents": split.documents,
            "tokens": split.tokens,
            "sentences": split.sentences,
            "bytes": split.bytes,
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
    path = directory / INDEX_FILE
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
    dtype = _read_field(data, "dtype", str, path)
    if dtype not in DTYPES:
        raise DataError(f"{path}: 'dtype' is {dtype[:40]!r}; allowed: {', '.join(DTYPES)}; {_INDEX_REMEDY}")
    vocab = _read_count(data, "vocab", path)
    if not 0 < vocab <= np.iinfo(dtype).max + 1:
        raise DataError(
            f"{path}: 'vocab' is {vocab}, but must be from 1 to {np.iinfo(dtype).max + 1} for {dtype}; {_INDEX_REMEDY}"
        )
    sources = _read_field(data, "sources", list, path)
    if not all(isinstance(name, str) for name in sources):
        raise DataError(f"{path}: 'sources' is not a list of names; {_INDEX_REMEDY}")
    splits = _read_field(data, "splits", dict, path)
    return DataIndex(
        tokenizer_sha256=_read_field(data, "tokenizer_sha256", str, path),
        vocab=vocab,
        dtype=dtype,
        fingerprint=_read_field(data, "fingerprint", str, path),
        sources=tuple(sources),
        splits={name: _read_split(splits[name], name, path) for name in splits},
        settings=_read_field(data, "settings", dict, path),
    )


def _read_split(data: object, name: str, path: Path) -> ShardSplit:
    if not name.isidentifier() or not isinstance(data, dict):
        raise DataError(f"{path}: 'splits' contains {name[:40]!r}, which is not a valid split; {_INDEX_REMEDY}")
    shards = tuple(_read_shard(shard, name, path) for shard in _read_field(data, "shards", list, path))
    split = ShardSplit(shards=shards, bytes=_read_count(data, "bytes", path))
    for field in ("documents", "tokens", "sentences"):
        stated_count, shard_count = _read_count(data, field, path), getattr(split, field)
        if stated_count != shard_count:
            raise DataError(
                f"{path}: split '{name}' has {stated_count} {field}, but its shards have {shard_count}; {_INDEX_REMEDY}"
            )
    return split


def _read_shard(data: object, split: str, path: Path) -> ShardFacts:
    if not isinstance(data, dict) or not _SHARD.fullmatch(str(data.get("name"))):
        raise DataError(f"{path}: a shard of split '{split}' has no valid 'name' (5 to 9 digits); {_INDEX_REMEDY}")
    names = ("documents", "tokens", "sentences", *(("pairs",) if "pairs" in data else ()))
    counts = {field: _read_count(data, field, path) for field in names}
    return ShardFacts(name=data["name"], **counts)


def _read_field(data: dict[str, Any], name: str, kind: type, path: Path) -> Any:
    if not isinstance(data.get(name), kind):
        hint = "" if name in data else suggest(name, data)
        raise DataError(f"{path}: '{name}' is missing or of the wrong type{hint}; {_INDEX_REMEDY}")
    return data[name]


def _read_count(data: dict[str, Any], name: str, path: Path) -> int:
    value: int = _read_field(data, name, int, path)
    if isinstance(value, bool) or not 0 <= value < 2**60:
        raise DataError(f"{path}: '{name}' is {value!r:.40}, not a count; {_INDEX_REMEDY}")
    return value
