import os
import re
from pathlib import Path

import pytest

from pretune.core.errors import DataError, UsageError
from pretune.text.corpora import file_discovery, open_corpus


def names(corpus_input: str, **options: object) -> tuple[list[str], dict[str, int]]:
    corpus = open_corpus([corpus_input], **options)  # type: ignore[arg-type]
    return [Path(item.name).name for source in corpus.sources for item in source.items], corpus.counts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a/2.txt", "a/10.txt", "c/d/e.txt", "B.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")
    return tmp_path


def test_folders_are_walked_in_sorted_order(folder: Path) -> None:
    assert names(str(folder)) == (["B.txt", "10.txt", "2.txt", "b.txt", "e.txt"], {})
    assert names(str(folder) + "/") == (["B.txt", "10.txt", "2.txt", "b.txt", "e.txt"], {})


def test_globs(folder: Path) -> None:
    assert names(f"{folder}/*.txt")[0] == ["B.txt", "b.txt"]
    assert names(f"{folder}/**/*.txt")[0] == ["B.txt", "10.txt", "2.txt", "b.txt", "e.txt"]
    assert names(f"{folder}/[ac]")[0] == ["10.txt", "2.txt", "e.txt"]
    with pytest.raises(DataError, match=r"\*\.jsonl"):
        open_corpus([f"{folder}/*.jsonl"])
    literal = folder / "x[1].txt"
    literal.write_text("text")
    assert names(str(literal))[0] == ["x[1].txt"]


def test_one_source_per_input(folder: Path) -> None:
    corpus = open_corpus([str(folder / "a"), str(folder / "b.txt"), f"{folder}/c/*"])
    kinds = [(source.kind, len(source.items)) for source in corpus.sources]
    assert kinds == [("folder", 2), ("file", 1), ("glob", 1)]
    assert [source.path for source in corpus.sources] == [str(folder / "a"), str(folder / "b.txt"), None]
    assert [(document.source, document.text) for document in corpus.read_documents()] == [
        (0, "text of a/10.txt"),
        (0, "text of a/2.txt"),
        (1, "text of b.txt"),
        (2, "text of c/d/e.txt"),
    ]
    assert [document.text for document in corpus.read_documents(1)] == ["text of b.txt"]
    assert corpus.bytes == sum(source.bytes or 0 for source in corpus.sources) == 16 + 15 + 13 + 17


def test_what_is_skipped_is_counted(folder: Path) -> None:
    (folder / ".hidden").write_text("text")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("text")
    (folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    (folder / "empty.txt").write_text("")
    (folder / "blank.txt").write_text(" \n")
    (folder / "numbers.csv").write_text("a,b\n1,2\n")
    (folder / "nothing.jsonl").write_text('{"text": ""}\n')
    (folder / "link.txt").symlink_to(folder / "b.txt")
    (folder / "nowhere.txt").symlink_to(folder / "absent")
    (folder / "self").symlink_to(folder / "self")
    (folder / "c" / "up").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    found, counts = names(str(folder))
    assert found == ["B.txt", "10.txt", "2.txt", "b.txt", "e.txt"]
    assert counts == {
        "binary_files": 1,
        "empty_files": 3,
        "hidden_files": 2,
        "repeated_files": 1,
        "repeated_folders": 1,
        "special_files": 1,
        "tables_without_text_field": 1,
        "unreadable_files": 2,
    }


def test_a_linked_folder_is_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "linked").symlink_to(folder / "a")
    assert names(str(other))[0] == ["10.txt", "2.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(folder: Path) -> None:
    (folder / "b.txt").chmod(0)
    (folder / "c").chmod(0)
    try:
        found, counts = names(str(folder))
        assert found == ["B.txt", "10.txt", "2.txt"]
        assert counts == {"unreadable_files": 1, "unreadable_folders": 1}
        with pytest.raises(DataError, match=r"b\.txt: .*Permission denied"):
            open_corpus([str(folder / "b.txt")])
    finally:
        (folder / "c").chmod(0o700)


def test_what_may_not_be_read_seen_by_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_access, real_open = os.access, os.open

    def refuse(path: str, *rest: int, **options: object) -> int:
        if str(path).endswith("b.txt"):
            raise PermissionError(13, "Permission denied", path)
        return real_open(path, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("b.txt") and real_access(path, mode))
    monkeypatch.setattr(os, "open", refuse)
    assert names(str(folder)) == (["B.txt", "10.txt", "2.txt", "e.txt"], {"unreadable_files": 1})
    with pytest.raises(DataError, match=r"b\.txt: .*Permission denied"):
        open_corpus([str(folder / "b.txt")])


def test_text_is_never_given_twice(folder: Path) -> None:
    file = str(folder / "b.txt")
    with pytest.raises(UsageError, match=r"b\.txt"):
        open_corpus([file, file])
    with pytest.raises(UsageError, match=r"b\.txt"):
        open_corpus([str(folder), file])
    corpus = open_corpus([file, str(folder)])
    assert corpus.counts == {"repeated_files": 1}
    assert len({document.text for document in corpus.read_documents()}) == 5 == len(list(corpus.read_documents()))


def test_a_file_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    try:
        Path(path).write_text("text")
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    corpus = open_corpus([path])
    (document,) = corpus.read_documents()
    assert document.location.endswith("/caf\ufffd.txt:1")
    assert len(corpus.compute_fingerprint()) == 64
    assert [document.text for document in open_corpus([str(tmp_path)]).read_documents()] == ["text"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("b.tx", "/b.txt'"),
        ("absent/b.txt", "absent/b.txt"),
        ("b.txt/x", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("a\0b", "null"),
    ],
)
def test_what_is_not_there(folder: Path, name: str, value: str) -> None:
    with pytest.raises(DataError) as caught:
        open_corpus([f"{folder}/{name}"])
    assert value in str(caught.value)


def test_a_folder_without_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        open_corpus([str(tmp_path)])
    (tmp_path / "a.bin").write_bytes(b"\0")
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.raises(DataError, match="1 binary files, 1 empty files"):
        open_corpus([str(tmp_path)])


def test_what_is_stored_nowhere(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(DataError, match="pipe" if path.is_fifo() else "device"):
            open_corpus([str(path)])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_files_of_the_kernel_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(file_discovery, "detect_format", read)
    (tmp_path / "link.txt").symlink_to("/proc/self/status")
    for given in ("/proc/self/status", "/proc/kmsg", str(tmp_path / "link.txt"), str(tmp_path)):
        with pytest.raises(DataError):
            open_corpus([given])


def test_an_empty_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content might come from somewhere else, and never end."""
    (tmp_path / "a.txt").touch()
    monkeypatch.setattr(file_discovery, "detect_format", None)
    with pytest.raises(DataError, match=r"a\.txt"):
        open_corpus([str(tmp_path / "a.txt")])
