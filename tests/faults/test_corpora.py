"""R10: what corpora can be like. A fault stops with exit code 3 before any work, and names the file and the place."""

import bz2
import codecs
import gzip
import lzma
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pretune.core.errors import DataError, PretuneError
from pretune.text.corpora import open_corpus
from tests.conftest import ROOT
from tests.selection import keep_quick

PLAIN = "First line – naïve.\nSecond line, 漢字 😀.\n\nA second document.\n"
EXPECTED = ["First line – naïve.\nSecond line, 漢字 😀.", "A second document."]
PACK: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}


def texts(path: Path, **options: object) -> list[str]:
    return [document.text for document in open_corpus([str(path)], **options).read_documents()]  # type: ignore[arg-type]


def refused(path: Path, **options: object) -> str:
    """The message with which a corpus is refused as it is opened, one line long."""
    with pytest.raises(DataError) as caught:
        open_corpus([str(path)], **options)  # type: ignore[arg-type]
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b" \t\r\n\x0b\x0c" * 1000,
        "\u3000\u2028\xa0\n".encode(),
        codecs.BOM_UTF8,
        codecs.BOM_UTF16_LE + "\n \n".encode("utf-16-le"),
        b" " * 5_000_000,
    ],
)
def test_empty_and_blank(tmp_path: Path, content: bytes, pack: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(PACK[pack](content))
    assert str(path) in refused(path)
    assert re.search(r"\b1 empty\b", refused(tmp_path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"text": ""}\n{"text": null}\n{"text": " \\n "}\n'),
        ("a.csv", 'text,n\n"",1\n" ",2\n'),
        ("a.csv", "text,n\n"),
    ],
)
def test_tables_without_any_text(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    message = refused(tmp_path / name, field="text")
    assert name in message and "'text'" in message


def test_the_smallest_corpus_is_a_corpus(tmp_path: Path) -> None:
    """The length is checked where sequences are made."""
    (tmp_path / "a.txt").write_text("x")
    assert texts(tmp_path / "a.txt") == ["x"]


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize(
    "content",
    [
        b"\x7fELF\x02\x01\x01\0\0\0\0\0",
        b"text with a \0 zero",
        b"x" * 8191 + b"\0",
        bytes(10_000),
        random.Random(0).randbytes(10_000),
        b"%PDF-1.4\n",
        b"\x89PNG\r\n\x1a\n",
    ],
    ids=["elf", "zero", "last", "zeros", "random", "pdf", "png"],
)
def test_binary_files(tmp_path: Path, content: bytes, pack: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(PACK[pack](content))
    assert re.search(r"a\.txt\b.*\bbinary\b", refused(path))
    assert re.search(r"\b1 binary\b", refused(tmp_path))
    (tmp_path / "b.txt").write_text("text")
    corpus = open_corpus([str(tmp_path)])
    assert [document.text for document in corpus.read_documents()] == ["text"]
    assert corpus.counts == {"binary_files": 1}


def test_a_zero_further_on_is_kept_as_a_character(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 8192 + b"\0y")
    assert texts(path) == ["x" * 8192 + "\0y"]


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("mark", [True, False])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_encodings_and_newlines(tmp_path: Path, encoding: str, newline: str, mark: bool, pack: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(PACK[pack](("\ufeff" * mark + PLAIN.replace("\n", newline)).encode(encoding)))
    assert texts(path) == EXPECTED


@pytest.mark.parametrize("by", ["file", "block", "line"])
def test_crlf_and_lf_are_the_same_corpus(tmp_path: Path, by: str) -> None:
    for name, newline in (("lf", "\n"), ("crlf", "\r\n")):
        (tmp_path / name).write_bytes(PLAIN.replace("\n", newline).encode())
    assert texts(tmp_path / "lf", by=by) == texts(tmp_path / "crlf", by=by)


@pytest.mark.parametrize("offset", [0, 1, 8191, 2**18 - 1, 2**18, 2**20 - 2, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
@pytest.mark.parametrize("broken", [b"\xff", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80"])
def test_invalid_utf8_at_the_edges_of_chunks(tmp_path: Path, offset: int, broken: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * offset + broken + b" and so on " * 2000)
    with pytest.raises(DataError) as caught:
        texts(path)
    assert re.search(rf"^{path}: byte {offset}\b.*\b{broken[:1].hex()}\b", str(caught.value))
    corpus = open_corpus([str(path)], errors="replace")
    (document,) = corpus.read_documents()
    assert document.text.startswith("x" * offset + "\ufffd")
    assert corpus.counts == {"replaced_characters": {b"\xed\xa0\x80": 3}.get(broken, 1)}


@pytest.mark.parametrize("edge", [2**20 - 3, 2**20 - 2, 2**20 - 1, 2**20])
def test_valid_characters_at_the_edges_of_chunks(tmp_path: Path, edge: int) -> None:
    path = tmp_path / "a.txt"
    text = "x" * edge + "😀é\r\n漢" + "y" * 100
    path.write_bytes(text.encode())
    assert texts(path) == [text.replace("\r\n", "\n")]


def test_latin_1_is_refused_with_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("un café".encode("latin-1"))
    for place in (path, tmp_path):  # text that cannot be read is not skipped
        assert re.search(r"a\.txt: byte 6\b.*\be9\b", refused(place))


def test_archives_of_files_are_binary(tmp_path: Path) -> None:
    import tarfile
    import zipfile

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("text")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "in" / "a.txt")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "in" / "a.txt")
    for name in ("a.tar.gz", "a.zip"):
        message = refused(tmp_path / name)
        assert name in message and "binary" in message


@pytest.mark.parametrize("count", keep_quick([500, 2500], 500))
def test_mangled_files_give_only_our_errors(tmp_path: Path, count: int) -> None:
    rng = random.Random(1)
    seeds = [
        PLAIN.encode(),
        PLAIN.encode("utf-16"),
        b'{"text": "one", "n": 1}\n{"text": "two"}\n',
        b'text,n\n"one\n""two""",1\nthree,2\n',
        *(pack(PLAIN.encode()) for pack in PACK.values()),
    ]
    path = [tmp_path / name for name in ("a", "a.csv", "a.tsv", "a.jsonl")]
    for number in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            match rng.randint(0, 3):
                case 0:
                    data[rng.randrange(len(data))] = rng.randrange(256)
                case 1:
                    del data[rng.randrange(len(data)) :]
                    data += b"x"
                case 2:
                    at = rng.randrange(len(data))
                    data[at:at] = rng.randbytes(rng.randint(1, 5))
                case _:
                    data += rng.choice(seeds)
        file = path[number % len(path)]
        file.write_bytes(data)
        for options in ({}, {"errors": "replace"}, {"by": "line"}, {"field": "text"}):
            try:
                corpus = open_corpus([str(file)], **options)  # type: ignore[arg-type]
                found = list(corpus.read_documents())
                assert [document for part in corpus.plan_parts(10) for document in part.read_documents()] == found
                for document in found:
                    document.text.encode()
                    assert document.text.strip()
            except PretuneError as fault:
                assert "\n" not in str(fault)


MEASURE = """
import sys
from pretune.text.corpora import MAX_CHARACTERS, open_corpus
size = pieces = ends = 0
for document in open_corpus([sys.argv[1]], by=sys.argv[2]).read_documents():
    size += len(document.text); pieces += 1; ends += not document.is_continued
    assert len(document.text) <= MAX_CHARACTERS
print(size, pieces, ends, next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""  # NOTE: not ru_maxrss, which begins with that of the process we come from


def measure(path: Path, by: str = "auto") -> tuple[int, int, int, float]:
    """Characters, pieces, documents and the most memory (MiB) of a process that reads a corpus."""
    if not Path("/proc/self/status").exists():
        pytest.skip("memory is measured on Linux only")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", MEASURE, str(path), by]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    size, pieces, ends, memory = map(int, done.stdout.split())
    return size, pieces, ends, memory / 1024


def write_line(path: Path, size: int, opener: Callable[..., object] = open) -> None:
    """One line of so many bytes, in which a space comes now and then."""
    block = (b"word and another one " * 50_000)[: 2**20]
    with opener(path, "wb") as file:  # type: ignore[attr-defined]
        for _ in range(size // len(block)):
            file.write(block)


def test_one_long_line_takes_little_memory(tmp_path: Path) -> None:
    size = 200 * 2**20
    write_line(tmp_path / "a.txt", size)
    found, pieces, ends, memory = measure(tmp_path / "a.txt")
    assert (found, pieces, ends) == (size, 26, 1)
    assert memory < 160


@pytest.mark.parametrize("opener", keep_quick([gzip.open, lzma.open], gzip.open), ids=["gzip", "xz"])
def test_a_long_line_may_be_compressed(tmp_path: Path, opener: Callable[..., object]) -> None:
    size = 40 * 2**20
    write_line(tmp_path / "a", size, opener)
    found, _, ends, memory = measure(tmp_path / "a", "line")
    assert (found, ends) == (size, 1)
    assert memory < 160


@pytest.mark.slow
@pytest.mark.parametrize("by", ["auto", "line", "file"])
def test_a_line_of_two_gigabytes_takes_less_than_one(tmp_path: Path, by: str) -> None:
    size = 2 * 2**30
    write_line(tmp_path / "a.txt", size)
    found, _, ends, memory = measure(tmp_path / "a.txt", by)
    assert (found, ends) == (size, 1)
    assert memory < 160
