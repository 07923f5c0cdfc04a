""".npy files: appending without a known length, and memory-mapping with validation.

`numpy.load` reads the files of `NpyWriter`. `open_npy` parses the header with a regular expression and evaluates
nothing, so a damaged or malicious file gives a one-line error and uses no memory.
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
"""Size of the header: a multiple of 64, as the format requires, with space for any length."""

_MAGIC = b"\x93NUMPY\x01\x00"
_PATTERN = re.compile(
    r"\{'descr': '([<>|=]\w{1,8})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,80})\), \} *\n"
)
_REMEDY = "prepare the data again, or copy the directory again"


class NpyWriter:
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
