"""Files are whole or absent, whatever goes wrong in between, and damage is always noticed."""

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import CheckpointError, DataError, PretuneError, ResourceError, UsageError
from pretune.core.io import (
    MANIFEST,
    atomic_directory,
    atomic_write,
    check_manifest,
    parse_json,
    read_json,
    recover,
    sha256,
    translate_write_errors,
    write_json,
    write_manifest,
)


def names(directory: Path) -> list[str]:
    """Every file below a directory, and every empty folder."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def failing(number: int, after: int = 0) -> Callable[..., Any]:
    """A replacement of os.replace that works `after` times and then fails with an errno."""
    calls = iter(range(after))
    real = os.replace

    def replace(*arguments: Any) -> None:
        if next(calls, None) is None:
            raise OSError(number, os.strerror(number))
        real(*arguments)

    return replace


class TestAtomicWrite:
    def test_it_writes_text_and_bytes_over_what_was_there(self, tmp_path: Path) -> None:
        for content in (b"\x00\xff", "größe\n"):
            atomic_write(tmp_path / "a", content)
            assert (tmp_path / "a").read_bytes() == (content if isinstance(content, bytes) else content.encode())
        assert names(tmp_path) == ["a"]

    def test_others_may_read_what_the_umask_lets_them(self, tmp_path: Path) -> None:
        old = os.umask(0o022)
        try:
            atomic_write(tmp_path / "a", "x")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644

    @pytest.mark.parametrize("step", ["replace", "fsync"])
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
    def test_a_failing_disk_leaves_the_old_file_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
    ) -> None:
        (tmp_path / "a").write_text("old")
        monkeypatch.setattr(os, step, failing(number))
        with pytest.raises(ResourceError) as caught:
            atomic_write(tmp_path / "a", "new")
        assert str(tmp_path / "a") in str(caught.value)
        assert "\n" not in str(caught.value)
        assert (tmp_path / "a").read_text() == "old"
        assert names(tmp_path) == ["a"]

    def test_an_interrupt_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            atomic_write(tmp_path / "a", "new")
        assert names(tmp_path) == []

    def test_impossible_places_are_usage_errors(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for place in ("absent/a", "file/a", ".", "n" * 300):
            with pytest.raises(UsageError, match=re.escape(f"'{tmp_path / place}'")):
                atomic_write(tmp_path / place, "x")

    def test_the_data_is_on_the_disk_before_the_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        events: list[str] = []
        real_sync, real_replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", lambda fd: (events.append("sync"), real_sync(fd))[1])
        monkeypatch.setattr(os, "replace", lambda a, b: (events.append("name"), real_replace(a, b))[1])
        atomic_write(tmp_path / "a", "x")
        assert events == ["sync", "name", "sync"]


def test_faults_told_only_in_text_are_understood(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=re.escape(str(tmp_path))), translate_write_errors(tmp_path):
        raise RuntimeError("I/O error: No space left on device (os error 28)")
    with pytest.raises(RuntimeError, match="something else"), translate_write_errors(tmp_path):
        raise RuntimeError("something else")
    with pytest.raises(DataError, match="os error 28"), translate_write_errors(tmp_path):
        raise DataError("ours stays as it is (os error 28)")


def fill(directory: Path, content: str = "new", manifest: bool = True) -> None:
    """Write a small tree as a checkpoint would be."""
    (directory / "inner").mkdir()
    for name in ("config.json", "weights", "inner/weights"):
        (directory / name).write_text(content)
    if manifest:
        write_manifest(directory, ["config.json", "weights"])


FILES = [MANIFEST, "config.json", "inner/weights", "weights"]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory that was written before."""
    with atomic_directory(tmp_path / "run") as directory:
        fill(directory, "old")
    return tmp_path / "run"


def read_all(directory: Path) -> set[str]:
    """The contents of its files, which are all the same but for the manifest."""
    return {(directory / name).read_text() for name in FILES if name != MANIFEST}


class TestAtomicDirectory:
    def test_a_new_directory_appears_only_at_the_end(self, tmp_path: Path) -> None:
        target = tmp_path / "deep" / "run"
        with atomic_directory(target) as directory:
            fill(directory)
            assert not target.exists()
            assert directory.parent == target.parent
        assert names(target) == FILES
        assert names(tmp_path) == [f"deep/run/{name}" for name in FILES]

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    @pytest.mark.parametrize("exists", [False, True])
    def test_a_failure_inside_leaves_what_was_there(
        self, tmp_path: Path, error: type[BaseException], exists: bool
    ) -> None:
        target = tmp_path / "run"
        if exists:
            target.mkdir()
            (target / "weights").write_text("old")
        with pytest.raises(error), atomic_directory(target, overwrite=True) as directory:
            fill(directory)
            raise error
        assert target.exists() == exists
        assert names(tmp_path) == (["run/weights"] if exists else [])
        assert not exists or (target / "weights").read_text() == "old"

    def test_an_empty_directory_is_filled_in_place(self, tmp_path: Path) -> None:
        """A mount or the current directory cannot be renamed over; and what a kill left there does not count."""
        target = tmp_path / "run"
        (target / ".tmp-killed").mkdir(parents=True)
        before = target.stat().st_ino
        with atomic_directory(target) as directory:
            fill(directory)
        assert target.stat().st_ino == before
        assert names(target) == FILES

    def test_a_full_directory_or_a_file_is_refused_before_any_work(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "a").write_text("old")
        with pytest.raises(UsageError, match="run'"), atomic_directory(tmp_path / "run"):
            pytest.fail("the block ran")
        with pytest.raises(UsageError, match="run/a'"), atomic_directory(tmp_path / "run" / "a", overwrite=True):
            pytest.fail("the block ran")
        assert names(tmp_path) == ["run/a"]

    def test_someone_else_was_faster(self, tmp_path: Path) -> None:
        target = tmp_path / "run"
        with pytest.raises(UsageError, match="run'"), atomic_directory(target) as directory:
            fill(directory)
            target.mkdir()
            (target / "theirs").write_text("")
        assert names(tmp_path) == ["run/theirs"]

    def test_overwriting_keeps_the_other_files(self, old: Path) -> None:
        (old / "metrics.jsonl").write_text("kept")
        with atomic_directory(old, overwrite=True) as directory:
            fill(directory)
        assert names(old) == sorted([*FILES, "metrics.jsonl"])
        assert read_all(old) == {"new"}
        check_manifest(old)

    @pytest.mark.parametrize("after", range(4))
    def test_a_failure_while_overwriting_is_completed(
        self, old: Path, monkeypatch: pytest.MonkeyPatch, after: int
    ) -> None:
        """No other library reads a mixture in between, and whoever opens the directory next completes it."""
        with pytest.raises(ResourceError), atomic_directory(old, overwrite=True) as directory:
            fill(directory, "new and longer")
            monkeypatch.setattr(os, "replace", failing(errno.ENOSPC, after))
        with pytest.raises(CheckpointError, match=MANIFEST):
            check_manifest(old)
        monkeypatch.undo()
        recover(old)
        check_manifest(old)
        assert names(old) == FILES
        assert read_all(old) == {"new and longer"}

    def test_a_stale_manifest_does_not_outlive_its_files(self, old: Path) -> None:
        with atomic_directory(old, overwrite=True) as directory:
            fill(directory, manifest=False)
        assert MANIFEST not in names(old)

    def test_a_directory_in_the_way_of_a_file_is_seen_before_anything_moves(self, old: Path) -> None:
        (old / "weights").unlink()
        (old / "weights").mkdir()
        with pytest.raises(UsageError, match="weights"), atomic_directory(old, overwrite=True) as directory:
            fill(directory)
        assert (old / "config.json").read_text() == "old"
        assert MANIFEST in names(old)

    def test_a_file_in_the_way_of_a_directory_is_seen_before_anything_moves(self, tmp_path: Path) -> None:
        target = tmp_path / "run"
        target.mkdir()
        (target / "inner").write_text("")
        (target / MANIFEST).write_text("{}")
        with pytest.raises(UsageError, match="inner'"), atomic_directory(target, True) as directory:
            fill(directory)
        assert names(target) == [MANIFEST, "inner"]

    def test_a_link_to_a_directory_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        with atomic_directory(tmp_path / "link") as directory:
            fill(directory)
        assert (tmp_path / "link").is_symlink()
        assert names(tmp_path / "real") == FILES


class TestJson:
    def test_half_a_surrogate_pair_comes_back(self, tmp_path: Path) -> None:
        """As in a file of a stranger, whose fields are written again."""
        write_json(tmp_path / "a.json", {"name": "\ud800 é"})
        assert read_json(tmp_path / "a.json", DataError) == {"name": "\ud800 é"}

    @pytest.mark.parametrize(
        ("content", "value"),
        [
            (b"", "1:1"),
            (b'{"a": 1,\n  "b": }', "2:8"),
            (b'{"a": "\xff"}', " 7"),
            (b'{"a": {"b": 1, "c": 2, "b": 3}}', "'b'"),
            (b'{"a": NaN}', "NaN"),
            (b'{"a": -Infinity}', "-Infinity"),
            (b'{"a": 1e999}', "1e999"),
            (b'{"a": ' + b"9" * 5000 + b"}", ""),
            (b"[1]", "array"),
            (b"null", "null"),
            (b'{"a":' * 200_000, ""),
            (b"[" * 200_000, ""),
            (b'{"a": "' + b"x" * 1_000_000 + b'"}', "1000000"),
            (b'\xef\xbb\xbf{"a": 1}', "1:1"),
        ],
    )
    def test_bad_content_is_one_line_with_the_file(self, tmp_path: Path, content: bytes, value: str) -> None:
        path = tmp_path / "a.json"
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            read_json(path, DataError, limit=1_000_000 if value == "1000000" else 2_000_000)
        assert str(caught.value).startswith(f"{path}: ")
        assert value in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("error", [DataError, CheckpointError])
    def test_what_is_no_file_is_refused(self, tmp_path: Path, error: type[PretuneError]) -> None:
        os.mkfifo(tmp_path / "pipe")
        for name in ("absent", ".", "pipe", "\0"):
            with pytest.raises(error, match=re.escape(str(tmp_path / name))):
                read_json(tmp_path / name, error)

    @given(
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"])),
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers(-(10**30), 10**30)
                | st.floats(allow_nan=False, allow_infinity=False)
                | st.text(st.characters(exclude_categories=["Cs"])),
                lambda inner: st.lists(inner, max_size=3),
                max_leaves=5,
            ),
            max_size=4,
        )
    )
    def test_round_trip(self, data: dict[str, Any]) -> None:
        assert parse_json(json.dumps(data), DataError, "text") == data

    def test_written_files_are_read_back(self, tmp_path: Path) -> None:
        data = {"b": [1, None, "größe"], "a": {"x": 0.1}}
        write_json(tmp_path / "a.json", data)
        assert read_json(tmp_path / "a.json", DataError) == data
        assert list(read_json(tmp_path / "a.json", DataError)) == ["b", "a"]
        with pytest.raises(ValueError, match="JSON"):
            write_json(tmp_path / "a.json", {"x": float("nan")})
        assert read_json(tmp_path / "a.json", DataError) == data


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A directory with a manifest."""
    (tmp_path / "weights").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "config.json").write_text("{}")
    write_manifest(tmp_path, ["weights", "config.json"], extra={"step": 3})
    return tmp_path


class TestManifest:
    def test_a_whole_directory_passes_and_more_files_do_no_harm(self, whole: Path) -> None:
        (whole / "notes").write_text("mine")
        manifest = check_manifest(whole)
        assert manifest["step"] == 3
        assert list(manifest["files"]) == ["config.json", "weights"]
        assert manifest["files"]["config.json"] == {"size": 2, "sha256": sha256(whole / "config.json")}

    def test_the_hash_is_sha256(self, tmp_path: Path) -> None:
        (tmp_path / "abc").write_bytes(b"abc")
        assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

    @pytest.mark.parametrize("byte", [0, 1279, 2559])
    def test_any_flipped_byte_is_found(self, whole: Path, byte: int) -> None:
        content = bytearray((whole / "weights").read_bytes())
        content[byte] ^= 1
        (whole / "weights").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"weights: .*SHA-256"):
            check_manifest(whole)
        check_manifest(whole, hashes=False)

    @pytest.mark.parametrize("hashes", [True, False])
    @pytest.mark.parametrize("size", [0, 2559, 2561])
    def test_a_wrong_size_is_found(self, whole: Path, hashes: bool, size: int) -> None:
        os.truncate(whole / "weights", size)
        with pytest.raises(CheckpointError, match=rf"weights: .*\b{size}\b.*\b2560\b"):
            check_manifest(whole, hashes=hashes)

    @pytest.mark.parametrize("hashes", [True, False])
    def test_a_missing_part_is_named(self, whole: Path, hashes: bool) -> None:
        (whole / "weights").unlink()
        with pytest.raises(CheckpointError, match="weights: "):
            check_manifest(whole, hashes=hashes)
        (whole / "weights").mkdir()
        with pytest.raises(CheckpointError, match="weights: "):
            check_manifest(whole, hashes=hashes)

    def test_a_part_that_cannot_be_read_is_named(self, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: Any) -> str:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(whole / "weights"))

        monkeypatch.setattr("pretune.core.io.files.sha256", broken)
        with pytest.raises(CheckpointError, match=f"weights: .*{os.strerror(errno.EIO)}"):
            check_manifest(whole)

    def test_no_manifest_or_no_directory(self, whole: Path) -> None:
        (whole / MANIFEST).unlink()
        with pytest.raises(CheckpointError, match=MANIFEST):
            check_manifest(whole)
        with pytest.raises(CheckpointError, match="absent"):
            check_manifest(whole / "absent")

    @pytest.mark.parametrize(
        "data",
        [
            {},
            {"files": []},
            {"files": {"weights": None}},
            {"files": {"weights": {"size": 2560}}},
            {"files": {"weights": {"size": True, "sha256": "0" * 64}}},
            {"files": {"weights": {"size": -1, "sha256": "0" * 64}}},
            {"files": {"weights": {"size": "2560", "sha256": "0" * 64}}},
            {"files": {"weights": {"size": 2560, "sha256": "0" * 63}}},
        ],
    )
    @pytest.mark.parametrize("hashes", [True, False])
    def test_a_malformed_manifest_is_refused(self, whole: Path, data: Any, hashes: bool) -> None:
        write_json(whole / MANIFEST, data)
        with pytest.raises(CheckpointError, match=MANIFEST):
            check_manifest(whole, hashes=hashes)

    @pytest.mark.parametrize(
        "name", ["../secret", "/etc/passwd", "a/b", "a\\b", "..", ".", "", "\0", "\ud800", MANIFEST]
    )
    def test_names_cannot_leave_the_directory(self, whole: Path, name: str) -> None:
        (whole.parent / "secret").write_text("")
        entry = {"size": 0, "sha256": sha256(whole.parent / "secret")}
        (whole / MANIFEST).write_text(json.dumps({"files": {name: entry}}))
        with pytest.raises(CheckpointError, match=MANIFEST):
            check_manifest(whole)
        with pytest.raises(ValueError, match=re.escape(repr(name))):
            write_manifest(whole, [name])

    @given(name=st.text(st.characters(), max_size=20) | st.text("a./\\", max_size=6) | st.text("é", min_size=120))
    def test_no_name_breaks_the_check(self, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
        directory = tmp_path_factory.getbasetemp() / "hostile"
        directory.mkdir(exist_ok=True)
        (directory / MANIFEST).write_text(json.dumps({"files": {name: {"size": 0, "sha256": "0" * 64}}}))
        with pytest.raises(CheckpointError):
            check_manifest(directory)

    def test_the_list_of_files_cannot_be_forged_by_an_extra(self, whole: Path) -> None:
        with pytest.raises(ValueError, match="files"):
            write_manifest(whole, ["weights"], extra={"files": {}})
