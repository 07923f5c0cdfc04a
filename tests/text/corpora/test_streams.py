import bz2
import errno
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pretune.core.errors import DataError, UsageError
from pretune.text.corpora import streams
from pretune.text.corpora.streams import detect_compression, read_chunks

zstandard = pytest.importorskip("zstandard")


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "zstd": zstd,
}
TEXT = "".join(f"line {number} – naïve\n" for number in range(20_000)).encode()


def read(path: Path) -> bytes:
    compression = detect_compression(path.read_bytes()[:16])
    return b"".join(read_chunks(str(path), "name", compression))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "no-ending"


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("size", [0, 1, 7, len(TEXT)])
def test_what_was_packed_comes_out(path: Path, kind: str, size: int) -> None:
    path.write_bytes(PACKERS[kind](TEXT[:size]))
    assert detect_compression(path.read_bytes()) == kind
    assert read(path) == TEXT[:size]


@pytest.mark.parametrize("kind", PACKERS)
def test_several_streams_in_one_file(path: Path, kind: str) -> None:
    path.write_bytes(PACKERS[kind](TEXT) + PACKERS[kind](b"") + PACKERS[kind](b"end"))
    assert read(path) == TEXT + b"end"


def test_zeros_between_and_after_xz_streams(path: Path) -> None:
    path.write_bytes(lzma.compress(b"a") + bytes(8) + lzma.compress(b"b") + bytes(4))
    assert read(path) == b"ab"


def test_skippable_frames_of_zstd(path: Path) -> None:
    path.write_bytes(SKIPPABLE + zstd(b"a") + SKIPPABLE + zstd(b"b"))
    assert detect_compression(path.read_bytes()) == "zstd"
    assert read(path) == b"ab"


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_truncated_stream_is_an_error_and_never_a_short_text(path: Path, kind: str, share: float) -> None:
    packed = PACKERS[kind](os.urandom(100_000))
    path.write_bytes(packed[: int(share * len(packed))])
    with pytest.raises(DataError, match=rf"^name: .*{kind}"):
        read(path)


@pytest.mark.parametrize("kind", PACKERS)
def test_a_damaged_stream_is_an_error(path: Path, kind: str) -> None:
    packed = bytearray(PACKERS[kind](os.urandom(100_000)))
    if kind == "zstd":
        packed[4] |= 0x08  # a reserved bit; the compressor writes no checksum that would notice another
    else:
        packed[50_000] ^= 0xFF
    path.write_bytes(packed)
    with pytest.raises(DataError, match=rf"^name: .*{kind}"):
        read(path)


@pytest.mark.parametrize("kind", PACKERS)
def test_a_bomb_comes_out_a_chunk_at_a_time(path: Path, kind: str) -> None:
    path.write_bytes(PACKERS[kind](bytes(30 * 2**20)))
    sizes = [len(chunk) for chunk in read_chunks(str(path), "name", kind)]
    assert sum(sizes) == 30 * 2**20
    assert max(sizes) <= streams.CHUNK_BYTES


@pytest.mark.parametrize("text", [b"BZh9 is how bzip2 begins", b"", b"P", b"PK", b"\x1f\x8b", b"plain"])
def test_what_only_looks_compressed(text: bytes) -> None:
    assert detect_compression(text) == ""


def test_a_stretch_of_a_plain_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHUNK_BYTES", 3)
    path.write_bytes(b"0123456789")
    assert list(read_chunks(str(path), "name", "", 2, 9)) == [b"234", b"567", b"8"]
    assert list(read_chunks(str(path), "name", "", 8)) == [b"89"]
    assert list(read_chunks(str(path), "name", "", 4, 4)) == []


def test_zstd_without_its_library_names_the_extra(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(zstd(b"a"))
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(UsageError, match=r"pip install 'pretune\[zstd\]'"):
        read(path)


def test_what_is_no_regular_file_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"^name: "):
        list(read_chunks(str(path), "name", ""))
    with pytest.raises(DataError, match=os.strerror(errno.ENOENT)):
        list(read_chunks(str(path) + "x", "name", ""))
