"""Bytes of a file in chunks, decompressed: plain, gzip, xz, zstd or bzip2, detected by magic bytes.

Memory is bounded for any file: an archive that expands a millionfold is read in chunks, and one with a huge dictionary
is rejected. A truncated or damaged stream is an error, never a short text.
"""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from typing import Protocol

from pretune.core.errors import DataError, import_extra, suggest_file
from pretune.core.io import open_regular

CHUNK_BYTES = 2**20
"""Number of bytes read and yielded at a time."""

_MAX_XZ_MEMORY = 2**28  # `xz -9` needs 65 MiB
_MAX_ZSTD_WINDOW = 2**27  # the limit of `zstd` without `--long`
_ZSTD_INPUT_BYTES = 2048  # 3 bytes of zstd can expand to 128 KiB: small inputs bound the output
_BZIP2_SIGNATURE = re.compile(rb"BZh[1-9](?:\x31\x41\x59\x26\x53\x59|\x17\x72\x45\x38\x50\x90)")


class _DamagedStreamError(Exception):
    """Error of an optional library for a damaged stream."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def detect_compression(head: bytes) -> str:
    """Return the compression of a file by its first bytes (10 are enough); "" for none.

    >>> detect_compression(gzip.compress(b"text")), detect_compression(b"BZh9 is how bzip2 begins")
    ('gzip', '')
    """
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    if head.startswith(b"\x28\xb5\x2f\xfd") or re.match(rb"[\x50-\x5f]\x2a\x4d\x18", head):
        return "zstd"
    return "bzip2" if _BZIP2_SIGNATURE.match(head) else ""


def read_chunks(path: str, name: str, compression: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file, at most `CHUNK_BYTES` at a time; `start` and `stop` need a plain file."""
    try:
        with open_regular(path) as file:
            match compression:
                case "":
                    yield from _read_plain(file, start, stop)
                case "gzip":
                    yield from _read_all(gzip.GzipFile(fileobj=file))
                case "bzip2":
                    yield from _read_all(bz2.BZ2File(file))
                case "xz":
                    yield from _read_xz(file)
                case _:
                    yield from _read_zstd(file, name)
    except EOFError as fault:
        raise DataError(f"{name}: truncated {compression} data; copy or create the file again") from fault
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile, _DamagedStreamError) as fault:
        raise DataError(f"{name}: damaged {compression} data ({fault}); copy or create the file again") from fault
    except OSError as fault:
        if fault.strerror is None:  # bz2 has no error class
            raise DataError(f"{name}: damaged {compression} data ({fault}); copy or create the file again") from fault
        hint = suggest_file(name) if isinstance(fault, FileNotFoundError) else ""
        raise DataError(f"{name}: cannot be read: {fault.strerror}{hint}") from fault


def _read_plain(file: io.FileIO, start: int, stop: int | None) -> Iterator[bytes]:
    file.seek(start)
    left = CHUNK_BYTES if stop is None else stop - start
    while left > 0 and (data := file.read(min(left, CHUNK_BYTES))):
        yield data
        left -= len(data) if stop is not None else 0


def _read_all(file: _Readable) -> Iterator[bytes]:
    while data := file.read(CHUNK_BYTES):
        yield data


def _read_xz(file: io.FileIO) -> Iterator[bytes]:
    stream, in_stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_MEMORY), False
    data = file.read(CHUNK_BYTES)
    while data or in_stream:
        if not data and stream.needs_input:
            raise EOFError
        out = stream.decompress(data, CHUNK_BYTES)
        in_stream = not stream.eof
        if out:
            yield out
        if stream.eof:  # several streams may be concatenated, with zeros between them
            data = (stream.unused_data or file.read(CHUNK_BYTES)).lstrip(b"\0")
            while not data and (block := file.read(CHUNK_BYTES)):
                data = block.lstrip(b"\0")
            stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_MEMORY)
        else:
            data = file.read(CHUNK_BYTES) if stream.needs_input else b""


def _read_zstd(file: io.FileIO, name: str) -> Iterator[bytes]:
    zstandard = import_extra("zstandard", "zstd", f"{name}: reading zstd needs")
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
    stream, in_stream, ready, size = decompressor.decompressobj(), False, list[bytes](), 0
    for piece in (
        block[i : i + _ZSTD_INPUT_BYTES] for block in _read_all(file) for i in range(0, len(block), _ZSTD_INPUT_BYTES)
    ):
        data = piece
        while data:  # several frames may be concatenated
            try:
                out = stream.decompress(data)
            except zstandard.ZstdError as fault:
                raise _DamagedStreamError(fault) from fault
            data, in_stream = b"", not stream.eof
            if stream.eof:
                data, stream = stream.unused_data, decompressor.decompressobj()
            ready.append(out)
            size += len(out)
        if size >= CHUNK_BYTES:
            yield from _split_chunks(b"".join(ready))
            ready, size = [], 0
    if in_stream:
        raise EOFError
    yield from _split_chunks(b"".join(ready))


def _split_chunks(data: bytes) -> Iterator[bytes]:
    for i in range(0, len(data), CHUNK_BYTES):
        yield data[i : i + CHUNK_BYTES]


_ENDS = {"\n": re.compile(rb"\n"), "\n\n": re.compile(rb"\n\r?\n")}  # end of a line, and of a block
_OVERLAP_BYTES = 2  # a separator may start this many bytes before a chunk


def find_cut_points(path: str, name: str, separator: str, n_bytes: int) -> list[tuple[int, int | None, int]]:
    """Return consecutive ranges (first byte, byte to stop before, number of the first line) of at least `n_bytes` each.

    The file is read once, for the line numbers. NOTE: correct for UTF-8 only, where the newline byte is never part of
    another character.
    """
    end = _ENDS[separator]
    starts, lines = [0], [1]
    position, line, last = 0, 1, b""  # byte and line reached, and the preceding bytes
    for chunk in read_chunks(path, name, ""):
        data, counted_bytes = last + chunk, len(last)  # lines are counted up to here
        begin = position - len(last)  # file position of `data`
        while match := end.search(data, max(0, starts[-1] + n_bytes - len(separator) - begin)):
            line += _count_newlines(data[:counted_bytes], data[counted_bytes : match.end()])
            counted_bytes = match.end()
            starts.append(begin + counted_bytes)
            lines.append(line)
        line += _count_newlines(data[:counted_bytes], data[counted_bytes:])
        position += len(chunk)
        last = data[-_OVERLAP_BYTES:]
    if starts[-1] == position and position:
        starts.pop()
    return [*zip(starts, [*starts[1:], None], lines[: len(starts)], strict=True)]


def _count_newlines(previous: bytes, data: bytes) -> int:
    """Count the lines that end in `data`: at "\\n", "\\r\\n" and "\\r", as they are decoded."""
    count = data.count(b"\n")
    if b"\r" in data or previous.endswith(b"\r"):
        count += data.count(b"\r") - data.count(b"\r\n") - (previous.endswith(b"\r") and data.startswith(b"\n"))
    return count
