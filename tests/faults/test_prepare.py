"""Text, disks, tokenizers and processes at their worst (R4, R10): one line that says why, and nothing left behind."""

import errno
import gzip
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretune.cli import main
from pretune.core.errors import DataError, ResourceError, UsageError
from pretune.data.prepare import encoding
from pretune.data.prepare.run import merge
from pretune.data.shards.files import NpyWriter
from pretune.runs.prepare import prepare
from tests.conftest import ROOT
from tests.data.texts import MANY, blocks, byte_tokenizer, stories, texts_of, tree
from tests.selection import keep_quick

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Output directory of the data; nothing else may be left next to it."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def refused(capsys: Capture, place: Path, tokenizer: Path, *arguments: str, code: int = 3) -> str:
    """The one line of a refusal that left nothing."""
    given = ["prepare", *arguments, "--tokenizer", str(tokenizer), "--out", str(place / "data")]
    assert main(given) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert list(place.iterdir()) == []
    return err


class TestCorpora:
    @pytest.mark.parametrize(
        ("name", "content", "told"),
        [
            ("empty.txt", b"", "empty"),
            ("blank.txt", b" \n\t\n \n", ""),
            ("marked.txt", b"\xef\xbb\xbf", ""),
            ("binary.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" * 500, "binary"),
            ("late.txt", b"fine text. " * 200_000 + b"\xff\xfe", "byte 2200000"),
            ("rows.jsonl", b'{"text": "good"}\n{"text": 3}\n', "rows.jsonl:2"),
            ("blank.jsonl", b'{"text": ""}\n{"text": "  "}\n', "text"),
        ],
    )
    def test_no_text_in_a_file(
        self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path, name: str, content: bytes, told: str
    ) -> None:
        (tmp_path / name).write_bytes(content)
        message = refused(capsys, place, tokenizer, str(tmp_path / name))
        assert name in message and told in message

    def test_no_text_in_a_folder(self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path) -> None:
        (tmp_path / "folder").mkdir()
        assert str(tmp_path / "folder") in refused(capsys, place, tokenizer, str(tmp_path / "folder"))
        (tmp_path / "folder" / "x.bin").write_bytes(b"\0" * 100)
        assert "1 binary" in refused(capsys, place, tokenizer, str(tmp_path / "folder"))
        assert str(tmp_path / "absent") in refused(capsys, place, tokenizer, str(tmp_path / "absent"))

    def test_everything_filtered_away(self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path) -> None:
        given = blocks(tmp_path / "a.txt", MANY[:7])
        message = refused(capsys, place, tokenizer, given, "--clean", "nfc,short_pages=1000")
        assert re.search(r"\b7\b.*\bshort_pages=1000\b", message)

    def test_everything_held_out(self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path) -> None:
        given = blocks(tmp_path / "a.txt", MANY[:7])
        message = refused(capsys, place, tokenizer, given, "--holdout", "100%")
        assert re.search(r"\b7\b.*--holdout", message)

    def test_everything_in_the_validation_text(
        self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path
    ) -> None:
        train, valid = blocks(tmp_path / "t.txt", MANY[:7]), blocks(tmp_path / "v.txt", MANY[:9])
        message = refused(capsys, place, tokenizer, train, "--valid", valid)
        assert re.search(r"\bvalidation\b.*\b7\b", message)

    def test_validation_text_without_text(self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path) -> None:
        train = blocks(tmp_path / "t.txt", MANY[:7])
        valid = blocks(tmp_path / "v.txt", ["Short."])
        message = refused(capsys, place, tokenizer, train, "--valid", valid, "--clean", "short_pages=4")
        assert "validation" in message

    def test_shorter_than_a_sequence(self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path) -> None:
        given = blocks(tmp_path / "a.txt", ["Short."])
        assert main(["prepare", given, "--tokenizer", str(tokenizer), "--out", str(place / "data")]) == 0
        assert "warning: " in (err := capsys.readouterr().err)
        assert re.search(r"\b6 tokens\b", err)

    def test_a_fault_late_in_a_compressed_file(
        self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(encoding, "UNIT_BYTES", 2000)
        packed = gzip.compress("\n\n".join(MANY).encode())
        (tmp_path / "a.txt.gz").write_bytes(packed[: len(packed) // 2])
        for workers in ("0", "2"):
            message = refused(capsys, place, tokenizer, str(tmp_path / "a.txt.gz"), "--workers", workers)
            assert "a.txt.gz: " in message

    @pytest.mark.parametrize("workers", [0, 2])
    def test_the_first_fault_is_told_whatever_the_workers(
        self, place: Path, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, workers: int
    ) -> None:
        monkeypatch.setattr(encoding, "UNIT_BYTES", 50)
        rows = [json.dumps({"text": f"good {number}"}) for number in range(100)]
        rows[40] = rows[60] = '{"text": 3}'
        (tmp_path / "a.jsonl").write_text("\n".join(rows))
        with pytest.raises(DataError, match=r"a\.jsonl:41: .*'text'"):
            prepare([str(tmp_path / "a.jsonl")], tokenizer=tokenizer, out=place / "data", workers=workers)
        assert list(place.iterdir()) == []

    def test_odd_encodings_give_the_same(self, place: Path, tmp_path: Path, tokenizer: Path) -> None:
        text = "\n\n".join(["Grüße aus Köln. Schön!", "日本語のテキスト。はい。", "Emoji 👩‍👩‍👧 and é."]) + "\n"
        kinds = {
            "plain": text.encode(),
            "marked": b"\xef\xbb\xbf" + text.encode(),
            "dos": text.replace("\n", "\r\n").encode(),
            "utf16": text.encode("utf-16"),
            "utf16be": b"\xfe\xff" + text.encode("utf-16-be"),
        }
        found = {}
        for name, content in kinds.items():
            (tmp_path / name).write_bytes(content)
            data = prepare([str(tmp_path / name)], tokenizer=tokenizer, out=place / name, holdout=0)
            found[name] = texts_of(data)
        assert all(texts == found["plain"] and len(texts) == 3 for texts in found.values())

    def test_nul_is_text_where_text_began(self, place: Path, tmp_path: Path, tokenizer: Path) -> None:
        (tmp_path / "a.txt").write_bytes(b"words and words. " * 1000 + b"\0 and more")
        data = prepare([str(tmp_path / "a.txt")], tokenizer=tokenizer, out=place / "data")
        assert texts_of(data)[0].endswith(". \0 and more")


class TestTokenizers:
    def test_no_tokenizer(self, capsys: Capture, place: Path, tmp_path: Path) -> None:
        given = blocks(tmp_path / "a.txt", MANY[:7])
        assert "tokenizer.json" in refused(capsys, place, tmp_path, given, code=4)
        assert str(tmp_path / "absent") in refused(capsys, place, tmp_path / "absent", given, code=4)
        (tmp_path / "tokenizer.json").write_text('{"model": 3}')
        assert str(tmp_path / "tokenizer.json") in refused(capsys, place, tmp_path, given, code=4)


class TestDisks:
    @pytest.mark.parametrize("at", [1, 7, 15])
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
    def test_a_disk_that_fills_up(
        self, place: Path, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, at: int, number: int
    ) -> None:
        real, calls = NpyWriter.append, 0

        def append(self: NpyWriter, values: Any) -> None:
            nonlocal calls
            calls += 1
            if calls >= at:
                raise OSError(number, os.strerror(number))
            real(self, values)

        monkeypatch.setattr(NpyWriter, "append", append)
        given = blocks(tmp_path / "a.txt", MANY)
        with pytest.raises(ResourceError, match=str(place)):
            prepare([given], tokenizer=tokenizer, out=place / "deep" / "data", holdout="10%")
        assert list(place.iterdir()) == []

    def test_a_disk_that_fills_up_under_the_stage(
        self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = Path.open

        class Full:
            def __init__(self, file: Any) -> None:
                self.tell, self.close = file.tell, file.close

            def write(self, data: Any) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

        def full(self: Path, *arguments: Any, **options: Any) -> Any:
            file = real(self, *arguments, **options)
            return Full(file) if self.suffix == ".bin" else file

        monkeypatch.setattr(Path, "open", full)
        for workers in ("0", "2"):
            message = refused(capsys, place, tokenizer, blocks(tmp_path / "a.txt", MANY), "--workers", workers, code=6)
            assert str(place) in message
        assert multiprocessing.active_children() == []

    @pytest.mark.slow
    def test_a_limit_that_the_system_sets(self, place: Path, tmp_path: Path, tokenizer: Path) -> None:
        given = blocks(tmp_path / "a.txt", stories(1500))

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        done = command(place, tokenizer, given, start=limit)
        assert (done.wait(60), list(place.iterdir())) == (6, [])
        assert done.stderr is not None
        assert str(place) in (err := done.stderr.read()) and err.count("\n") == 1

    def test_a_real_disk_that_is_full(self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path) -> None:
        given = blocks(tmp_path / "a.txt", stories(1500))
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True)
        if mounted.returncode:
            pytest.skip("cannot mount a small disk here")
        try:
            for workers in ("0", "2"):
                message = refused(capsys, place, tokenizer, given, "--workers", workers, code=6)
                assert str(place) in message
        finally:
            subprocess.run(["umount", place], check=True)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_place_that_may_not_be_written(
        self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path
    ) -> None:
        place.chmod(0o500)
        message = refused(capsys, place, tokenizer, blocks(tmp_path / "a.txt", MANY[:9]), code=6)
        assert str(place) in message

    def test_a_file_system_that_is_read_only(
        self, capsys: Capture, place: Path, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def mkdir(self: Path, *_: Any, **__: Any) -> None:
            raise OSError(errno.EROFS, "Read-only file system", str(self))

        monkeypatch.setattr(Path, "mkdir", mkdir)
        message = refused(capsys, place, tokenizer, _written(tmp_path / "a.txt"), code=6)
        assert str(place) in message

    def test_a_place_that_is_a_file(self, place: Path, tmp_path: Path, tokenizer: Path) -> None:
        (place / "data").write_text("mine")
        with pytest.raises(UsageError, match=str(place / "data")):
            prepare([blocks(tmp_path / "a.txt", MANY[:9])], tokenizer=tokenizer, out=place / "data")
        assert tree(place) == {"data": b"mine"}

    def test_a_failed_overwrite_keeps_what_was_there(
        self, place: Path, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = blocks(tmp_path / "a.txt", MANY[:99])
        prepare([given], tokenizer=tokenizer, out=place / "data")
        before = tree(place)

        def fail(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(NpyWriter, "close", fail)
        with pytest.raises(ResourceError):
            prepare([given], tokenizer=tokenizer, out=place / "data", holdout="2%", overwrite=True)
        assert tree(place) == before


def _written(path: Path) -> str:
    path.write_text("\n\n".join(MANY[:9]))
    return str(path)


def command(
    place: Path, tokenizer: Path, *arguments: str, start: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    """The command in a process, and a group, of its own."""
    options = ["--tokenizer", str(tokenizer), "--out", str(place / "data")]
    return subprocess.Popen(
        [sys.executable, "-m", "pretune", "prepare", *arguments, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        start_new_session=True,
        preexec_fn=start,
    )


def workers_of(process: subprocess.Popen[str], count: int) -> list[int]:
    """The processes below a process, once they are there and at work."""
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        children = [int(one) for one in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        if len(children) >= count:
            time.sleep(0.3)
            return children
        time.sleep(0.02)
    raise AssertionError(process.stderr.read() if process.stderr else "")


def gone(process: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True


def wait_for(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + 15
    while not what() and time.monotonic() < end:
        time.sleep(0.05)
    return what()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Text that takes some seconds."""
    path = tmp_path_factory.mktemp("large") / "a.txt"
    texts = stories(2000)
    with path.open("w") as file:
        for number in range(40):
            file.write("".join(f"{text} Number {number}.\n\n" for text in texts))
    return str(path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
class TestProcesses:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("number", "code"), keep_quick([(signal.SIGINT, 130), (signal.SIGTERM, 75)], (signal.SIGTERM, 75))
    )
    def test_being_stopped(self, place: Path, tokenizer: Path, large: str, number: signal.Signals, code: int) -> None:
        if signal.getsignal(number) is signal.SIG_IGN:
            pytest.skip("a job in the background of a shell ignores this signal")
        process = command(place, tokenizer, large, "--workers", "2")
        children = workers_of(process, 2)
        assert any(place.iterdir())
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # Ctrl-C goes to everybody
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err.count("\n")) == (code, "", 1) and err.startswith("pretune: ")
        assert list(place.iterdir()) == []
        assert wait_for(lambda: all(map(gone, children)))

    @pytest.mark.slow
    def test_a_worker_that_is_killed(self, place: Path, tokenizer: Path, large: str) -> None:
        process = command(place, tokenizer, large, "--workers", "2")
        children = workers_of(process, 2)
        os.kill(children[1], signal.SIGKILL)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err.count("\n")) == (6, "", 1)
        assert "SIGKILL" in err and large in err
        assert list(place.iterdir()) == []
        assert wait_for(lambda: all(map(gone, children)))

    @pytest.mark.slow
    def test_workers_do_not_outlive_their_parent(self, place: Path, tokenizer: Path, large: str) -> None:
        process = command(place, tokenizer, large, "--workers", "2")
        children = workers_of(process, 2)
        process.kill()
        process.communicate(timeout=30)
        assert wait_for(lambda: all(map(gone, children)))

    def test_what_a_killed_run_left_does_not_matter(self, place: Path, tmp_path: Path, tokenizer: Path) -> None:
        (place / ".tmp-0123456789ab").mkdir()
        (place / "data" / ".tmp-0123456789ab").mkdir(parents=True)
        given = blocks(tmp_path / "a.txt", MANY[:9])
        assert prepare([given], tokenizer=tokenizer, out=place / "data").is_new

    def test_a_bug_in_a_worker_is_reported_as_one(
        self, place: Path, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(encoding.UnitEncoder, "_tokenise", fail)
        with pytest.raises(RuntimeError, match="ZeroDivisionError: a bug"):
            prepare([blocks(tmp_path / "a.txt", MANY)], tokenizer=tokenizer, out=place / "data", workers=1)
        assert list(place.iterdir()) == []


def test_a_failed_merge_leaves_nothing(
    place: Path, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = blocks(tmp_path / "a.txt", MANY)
    slices = [prepare([given], tokenizer=tokenizer, out=tmp_path / f"{n}", shard=f"{n}/2").path for n in (1, 2)]
    before = [tree(one) for one in slices]

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(NpyWriter, "append", fail)
    with pytest.raises(ResourceError):
        merge(slices, out=place / "data")
    assert list(place.iterdir()) == [] and [tree(one) for one in slices] == before
