"""Corpora that change while `prepare` works on them: an error, and no data under the fingerprint of something else."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import DataError
from pretune.data.prepare import run
from pretune.data.prepare.stage import StageWriter
from pretune.runs.prepare import prepare
from pretune.text.corpora import open_corpus
from pretune.text.corpora.items import FileSnapshot, stamp_file
from tests.data.texts import MANY, blocks, byte_tokenizer

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def halve(path: Path) -> None:
    """Truncate between two documents where there are some: no reader sees a fault in what is left."""
    content = path.read_bytes()
    os.truncate(path, content.index(b"\n\n", len(content) // 2) if b"\n\n" in content else len(content) // 2)


def extend(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n\nOne more document that nobody hashed.\n")


def rewrite(path: Path) -> None:
    """Other bytes of the same length."""
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"begins", b"starts"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


def remove(path: Path) -> None:
    path.unlink()


def write(path: Path) -> None:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in MANY))
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress("\n\n".join(MANY).encode()))
    else:
        blocks(path, MANY)


def after_hashing(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    real = run.list_parts

    def places(*given: Any) -> Any:
        work()
        return real(*given)

    monkeypatch.setattr(run, "list_parts", places)


def while_reading(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    real, done = StageWriter.add, False

    def add(self: StageWriter, chunk: Any) -> None:
        nonlocal done
        if not done:
            done = True
            work()
        real(self, chunk)

    monkeypatch.setattr(StageWriter, "add", add)


@pytest.mark.parametrize("change", [halve, extend, rewrite, remove])
@pytest.mark.parametrize("moment", [after_hashing, while_reading])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
def test_a_change_between_hashing_and_publishing(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, name: str, moment: Any, change: Change
) -> None:
    path, place = tmp_path / name, tmp_path / "place"
    write(path)
    place.mkdir()
    moment(monkeypatch, lambda: change(path))
    with pytest.raises(DataError) as caught:
        prepare([str(path)], tokenizer=tokenizer, out=place / "data")
    assert str(path) in str(caught.value) and list(place.iterdir()) == []


def test_validation_text_and_slices_too(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, valid = blocks(tmp_path / "t.txt", MANY[:90]), blocks(tmp_path / "v.txt", MANY[90:99])
    while_reading(monkeypatch, lambda: halve(Path(valid)))
    with pytest.raises(DataError):
        prepare([train], valid=[valid], tokenizer=tokenizer, out=tmp_path / "data", shard="2/2")
    assert not (tmp_path / "data").exists()


def test_a_file_that_is_truncated_under_a_reader(tmp_path: Path) -> None:
    path = Path(blocks(tmp_path / "a.txt", MANY))
    corpus = open_corpus([str(path)])
    halve(path)
    with pytest.raises(DataError):
        list(corpus.read_documents())


def test_an_unchanged_file_passes(tmp_path: Path) -> None:
    path = Path(blocks(tmp_path / "a.txt", MANY[:3]))
    snapshot = FileSnapshot([stamp_file(path)])
    with snapshot.guard():
        assert path.read_bytes()
    path.unlink()
    with pytest.raises(DataError):
        snapshot.check()
