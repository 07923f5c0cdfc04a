""".npy files: appended to without knowing the length, mapped only when they are what they should be.

`numpy.load` reads what `NpyWriter` writes. `open_npy` reads the header by a pattern and evaluates nothing, so that a
damaged or hostile file costs one line and no memory.
"""

import contextlib
import os
import re
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pretune.core.errors import DataError
from pretune.core.io import open_regular, translate_write_errors

HEADER_BYTES = 128
"""Bytes before the data: a multiple of 64, as the format asks, with room for any length."""

_MAGIC = b"\x93NUMPY\x01\x00"
_PATTERN = re.compile(
    r"\{'descr': '([<>|=]\w{1,8})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,80})\), \} *\n"
)
_REMEDY = "prepare the data again, or copy the directory again"


class NpyWriter:
    """An array on disk that grows; its length is written into the header when it is closed."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self.path, self.dtype, self.count = path, np.dtype(dtype), 0
        with translate_write_errors(path):
            self._file = path.open("xb")
            self._write(_build_header(self.dtype, 0))

    def append(self, values: NDArray[np.generic]) -> None:
        """Write values at the end; they are cast without a check of their range."""
        with translate_write_errors(self.path):
            self._write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.count += len(values)

    def close(self) -> None:
        """Put the length into the header; the file is now complete."""
        with translate_write_errors(self.path):
            self._file.seek(0)
            self._write(_build_header(self.dtype, self.count))
            self._file.close()

    def abandon(self) -> None:
        """Let go of the file as it is: its header says that it is empty."""
        with contextlib.suppress(OSError):  # of a full disk, which was told before
            self._file.close()

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)

    def __enter__(self) -> "NpyWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def open_npy(
    path: Path, dtype: DTypeLike, count: int | None = None, *, width: int | None = None
) -> NDArray[np.generic]:
    """Map a file that must hold `count` values of `dtype`, or rows of `width` values, and nothing else."""
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
        raise DataError(f"{path}: holds values of type '{kind}', but '{expected_dtype.str}' is needed; {_REMEDY}")
    if fortran_order == "True" or not re.fullmatch(r"\d{1,18}," + ("" if width is None else f" {width}"), shape):
        layout = "a single dimension" if width is None else f"rows of {width}"
        raise DataError(f"{path}: has the shape ({shape}), but {layout} is needed; {_REMEDY}")
    values = int(shape.partition(",")[0])
    if count is not None and values != count:
        raise DataError(f"{path}: holds {values} values, but {count} are expected; {_REMEDY}")
    total_bytes = 10 + length + values * row * expected_dtype.itemsize
    if size != total_bytes:
        raise DataError(f"{path}: has {size} bytes, but its header says {total_bytes}; {_REMEDY}")
    if not values:  # nothing cannot be mapped
        return np.empty(0 if width is None else (0, row), expected_dtype)
    sizes = (values,) if width is None else (values, row)
    return np.memmap(path, expected_dtype, mode="r", offset=10 + length, shape=sizes).view(np.ndarray)


def _build_header(dtype: np.dtype[np.generic], count: int) -> bytes:
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    room = HEADER_BYTES - len(_MAGIC) - 2
    return _MAGIC + room.to_bytes(2, "little") + text.ljust(room - 1).encode() + b"\n"
