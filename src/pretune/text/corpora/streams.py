"""Text of a file in chunks: bytes, decompressed (plain, gzip, xz, zstd or bzip2, detected by magic bytes) and decoded.

Memory is bounded for any file: an archive that expands a millionfold is read in chunks, and one with a huge dictionary
is rejected. A truncated or damaged stream is an error, never a short text.

The encoding is UTF-8 unless the first bytes indicate otherwise: a byte order mark, or the zeros typical of UTF-16 and
UTF-32. Other zeros in the first 8 KiB mean that a file is binary. Encodings without a signature (Latin-1, GBK,
Shift-JIS) are not guessed: a wrong guess would go unnoticed, while invalid UTF-8 is an error with its position.
"""

import bz2
import codecs
import gzip
import io
import itertools
import lzma
import re
import shlex
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol

from pretune.core.errors import DataError, import_extra, suggest_file
from pretune.core.io import open_regular

CHUNK_BYTES = 2**20
"""Number of bytes read and yielded at a time."""

_MAX_XZ_MEMORY = 2**28  # `xz -9` needs 65 MiB
_MAX_ZSTD_WINDOW = 2**27  # the limit of `zstd` without `--long`
_ZSTD_INPUT_BYTES = 2048  # 3 bytes of zstd can expand to 128 KiB: small inputs bound the output
_COMPRESSION_SIGNATURES = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
    "bzip2": re.compile(rb"BZh[1-9](?:\x31\x41\x59\x26\x53\x59|\x17\x72\x45\x38\x50\x90)"),
}


COMPRESSION = 4
"""Bytes of English text in a byte of a compressed file: 3.6 with xz."""


class _DamagedStreamError(Exception):
    """Error of an optional library for a damaged stream."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def detect_compression(head: bytes) -> str:
    """Return the compression of a file by its first bytes (10 are enough); "" for none.

    >>> detect_compression(gzip.compress(b"text")), detect_compression(b"BZh9 is how bzip2 begins")
    ('gzip', '')
    """
    return next((name for name, signature in _COMPRESSION_SIGNATURES.items() if signature.match(head)), "")


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
    except (zlib.error, lzma.LZMAError, _DamagedStreamError, OSError) as fault:
        reason = getattr(fault, "strerror", None)
        if reason is None:  # gzip and bz2 raise an OSError for damaged data
            raise DataError(f"{name}: damaged {compression} data ({fault}); copy or create the file again") from fault
        hint = suggest_file(name) if isinstance(fault, FileNotFoundError) else ""
        raise DataError(f"{name}: cannot be read: {reason}{hint}") from fault


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


Errors = Literal["strict", "replace"]
"""Handling of invalid bytes: stop, or insert U+FFFD and count `replaced_characters`."""

HEAD_BYTES = 8 * 2**10
"""Number of leading bytes that decide between text and binary."""

_BYTE_ORDER_MARKS = [  # NOTE: in this order: the mark of UTF-16-LE is a prefix of that of UTF-32-LE
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
]
_DECODERS: dict[str, Callable[[bytes, str, bool], tuple[str, int]]] = {
    "utf-8": codecs.utf_8_decode,
    "utf-16-le": codecs.utf_16_le_decode,
    "utf-16-be": codecs.utf_16_be_decode,
    "utf-32-le": codecs.utf_32_le_decode,
    "utf-32-be": codecs.utf_32_be_decode,
}
_ASCII = bytes([9, 10, 13, *range(32, 127)])
_EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "HANGUL", "BOPOMOFO"}
_BINARY_SIGNATURES = (
    b"%PDF-",
    b"PK\x03\x04",
    b"7z\xbc\xaf\x27\x1c",
    b"Rar!\x1a\x07",
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"\x1f\x8b",
    b"\xfd7zXZ",
)


def detect_encoding(head: bytes) -> tuple[str, int] | None:
    """Return the encoding of a file's first bytes and the length of its byte order mark; None if they are not text.

    >>> detect_encoding("naïve".encode()), detect_encoding("naïve".encode("utf-16-le")), detect_encoding(b"\\0\\1")
    (('utf-8', 0), ('utf-16-le', 0), None)
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return encoding, len(mark)
    head = head[:HEAD_BYTES]
    if head.startswith(_BINARY_SIGNATURES):
        return None
    if b"\0" not in head:
        return "utf-8", 0
    if len(head.translate(None, _ASCII)) < len(head) // 4:
        return None  # text with stray zeros, which would decode as Chinese in UTF-16
    candidates = [(share, encoding) for encoding in _DECODERS if (share := _score_encoding(head, encoding)) > 0]
    return (max(candidates)[1], 0) if candidates else None


def _score_encoding(head: bytes, encoding: str) -> float:
    """Return the share of ASCII when `head` is decoded; 0 if it cannot be text in the encoding."""
    try:
        text, _ = _DECODERS[encoding](head, "strict", False)
    except UnicodeDecodeError:
        return 0.0
    if not text or any(unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") and c not in "\t\n\r\f\v" for c in text):
        return 0.0
    return sum(c < "\x80" for c in text) / len(text) if _is_coherent(text) else 0.0


def _is_coherent(text: str) -> bool:
    """Return whether adjacent letters are mostly of the same script; binary data decoded as text are not."""
    scripts = [_get_script(c) if c.isalpha() else "" for c in text]
    changes = [left != right for left, right in itertools.pairwise(scripts) if left and right]
    return sum(changes) <= 1 + len(changes) // 4


def _get_script(letter: str) -> str:
    """Return the script of a letter, the start of its name; scripts that East Asian languages mix are one."""
    if "\u3400" <= letter < "\u4e00":
        return "rare CJK"  # pairs of ASCII bytes decoded as one character
    name = unicodedata.name(letter, "").partition(" ")[0]
    return "CJK" if name in _EAST_ASIAN else name


def decode(
    data: Iterable[bytes],
    encoding: str,
    name: str,
    errors: Errors = "strict",
    counts: Counter[str] | None = None,
    skip: int = 0,
    offset: int = 0,
    *,
    lone_carriage: str = "\n",
) -> Iterator[str]:
    """Decode chunks of bytes into text with "\\n" for every newline; a chunk may end within a character or a CRLF.

    `skip` is the length of the byte order mark, `offset` the file position of the first chunk. `lone_carriage` replaces
    a carriage return without a line feed.
    """
    decoder, pending = _DECODERS[encoding], b""
    newlines = io.IncrementalNewlineDecoder(None, translate=False)  # keeps "\r\n" together
    for chunk in itertools.chain(data, [None]):
        final = chunk is None
        block = pending + chunk if chunk else pending
        if skip:
            bom_bytes = min(skip, len(block))
            block, offset, skip = block[bom_bytes:], offset + bom_bytes, skip - bom_bytes
        try:
            text, consumed_bytes = decoder(block, "strict", final)
        except UnicodeDecodeError as fault:
            if errors == "strict":
                raise _make_decode_error(fault, encoding, name, offset) from None
            text, consumed_bytes = decoder(block, "replace", final)
            if counts is not None:
                counts["replaced_characters"] += text.count("\ufffd") - _count_replacement_characters(
                    block[:consumed_bytes], encoding
                )
        pending = block[consumed_bytes:]
        offset += consumed_bytes
        text = newlines.decode(text, final)
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", lone_carriage)
        if text:
            yield text


def _count_replacement_characters(block: bytes, encoding: str) -> int:
    """Count replacement characters in the original bytes."""
    width, sign = len("a".encode(encoding)), "\ufffd".encode(encoding)
    if width == 1:
        return block.count(sign)
    return sum(block[i : i + width] == sign for i in range(0, len(block), width))


def _make_decode_error(fault: UnicodeDecodeError, encoding: str, name: str, offset: int) -> DataError:
    hex_bytes = fault.object[fault.start : fault.end].hex(" ")[:11]
    likely = _guess_single_byte(fault.object[fault.start :])
    return DataError(
        f"{name}: byte {offset + fault.start} (hex {hex_bytes}) is not valid {encoding.upper()}: {fault.reason}; "
        f"convert it to UTF-8 (from {likely}: `iconv -f {likely} -t utf-8 {shlex.quote(name)} > NEW`); of a corpus, "
        "`pretune prepare --errors replace` inserts U+FFFD"
    )


def _guess_single_byte(data: bytes) -> str:
    """Guess the single-byte encoding of bytes.

    Latin-1 has control characters, which text lacks, where Windows-1252 has quotation marks, dashes and the euro sign.

    >>> _guess_single_byte("na\u00efve".encode("latin1")), _guess_single_byte("\u201cna\u00efve\u201d".encode("cp1252"))
    ('latin1', 'cp1252')
    """
    return (
        "cp1252" if re.search(rb"[\x80-\x9f]", data) and not re.search(rb"[\x81\x8d\x8f\x90\x9d]", data) else "latin1"
    )
