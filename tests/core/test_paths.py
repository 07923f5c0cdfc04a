"""Names read from files stay in their directory; only regular files of a bounded size are read."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.io import (
    check_manifest,
    open_in_place,
    parse_json,
    read_bounded,
    read_json,
    resolve_inside,
    write_json,
    write_manifest,
)

HOSTILE: list[Any] = [
    "..", ".", "", "../x", "../../etc/passwd", "/etc/passwd", "a/b", "a/../../x", "./x", "x/", "..\\x", "C:x", "C:\\x",
    "\\\\host\\share", "x\0", "x\n", "\x1b[31m", "\ud800", "a" * 256, "é" * 128, None, 7, 1.5, True, [], {}, ["x"],
]  # fmt: skip


class TestNames:
    @pytest.mark.parametrize("name", HOSTILE, ids=repr)
    def test_names_that_lead_elsewhere_are_refused(self, name: Any, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"index\.json") as caught:
            resolve_inside(tmp_path, name, DataError, tmp_path / "index.json")
        assert str(caught.value).isprintable()

    @pytest.mark.parametrize("name", ["x", "model-00001-of-00002.safetensors", "größe.txt", "..x", "a b", "-rf", "~"])
    def test_plain_names_are_taken_whether_the_file_exists_or_not(self, name: str, tmp_path: Path) -> None:
        assert resolve_inside(tmp_path, name, DataError) == tmp_path / name
        (tmp_path / name).touch()
        assert resolve_inside(str(tmp_path), name, DataError) == tmp_path / name

    @pytest.mark.parametrize("target", ["../outside", "{outside}", "../folder/../outside", "hop", "loop", "../absent"])
    def test_symbolic_links_out_of_the_directory_are_refused(self, target: str, tmp_path: Path) -> None:
        (tmp_path / "outside").touch()
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "hop").symlink_to("../outside")
        (folder / "x").symlink_to(target.format(outside=tmp_path / "outside"))
        if target == "loop":
            (folder / "loop").symlink_to("../folder2/loop")
        with pytest.raises(DataError, match="'x'"):
            resolve_inside(folder, "x", DataError)

    def test_symbolic_links_inside_the_directory_are_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "y").touch()
        (tmp_path / "real" / "x").symlink_to("y")
        (tmp_path / "folder").symlink_to("real")  # the directory itself may be a link
        assert resolve_inside(tmp_path / "folder", "x", DataError) == tmp_path / "folder" / "x"

    def test_the_layout_of_a_hugging_face_cache_is_read(self, tmp_path: Path) -> None:
        blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "abc"
        blobs.mkdir(parents=True)
        snapshot.mkdir(parents=True)
        (blobs / "123").write_text("{}")
        (snapshot / "good").symlink_to("../../blobs/123")
        (snapshot / "bad").symlink_to("../../refs")
        assert resolve_inside(snapshot, "good", DataError).read_text() == "{}"
        with pytest.raises(DataError, match="'bad'"):
            resolve_inside(snapshot, "bad", DataError)

    def test_a_manifest_vouches_only_for_files_of_its_directory(self, tmp_path: Path) -> None:
        (tmp_path / "outside").write_text("text")
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "x").write_text("text")
        write_manifest(folder, ["x"])
        check_manifest(folder)
        (folder / "x").unlink()
        (folder / "x").symlink_to("../outside")
        with pytest.raises(CheckpointError, match="'x'"):
            check_manifest(folder)


class TestBounds:
    def test_only_regular_files_are_read(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "loop").symlink_to("loop")
        for file in (tmp_path / "pipe", tmp_path / "loop", tmp_path, Path("/dev/zero"), tmp_path / "x\0"):
            with pytest.raises(UsageError):
                read_bounded(file, UsageError, 100)
            with pytest.raises(UsageError):
                read_json(file, UsageError)

    def test_a_file_may_have_as_many_bytes_as_are_allowed(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"a" * 100)
        assert read_bounded(tmp_path / "x", DataError, 100) == b"a" * 100
        with pytest.raises(DataError, match=r"\b100\b"):
            read_bounded(tmp_path / "x", DataError, 99)

    def test_a_file_that_understates_its_size_is_bounded(self) -> None:
        if not Path("/proc/self/maps").exists():
            pytest.skip("needs a file whose size reads as zero")
        assert len(read_bounded("/proc/self/maps", DataError, 2**24)) > 64
        with pytest.raises(DataError, match=r"\b64\b"):
            read_bounded("/proc/self/maps", DataError, 64)

    @pytest.mark.parametrize("wrap", [lambda n: "[" * n + "]" * n, lambda n: '{"a":' * n + "1" + "}" * n])
    def test_depth_is_bounded(self, wrap: Callable[[int], str], tmp_path: Path) -> None:
        parse_json(wrap(100), DataError, "x")
        for depth in (101, 900, 6_000, 10**6):
            with pytest.raises(DataError, match=r"^x: "):
                parse_json(wrap(depth), DataError, "x")

    def test_a_wide_file_is_not_deep(self, tmp_path: Path) -> None:
        data = {"a": [[i, {"b": []}] for i in range(1000)]}
        write_json(tmp_path / "x", data)
        assert read_json(tmp_path / "x", DataError) == data


class TestInPlace:
    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "precious").write_text("keep")
        (tmp_path / "link").symlink_to(tmp_path / "precious")
        (tmp_path / "loose").symlink_to(tmp_path / "absent")
        for name in ("link", "loose"):
            with pytest.raises(UsageError, match=name):
                open_in_place(tmp_path / name)
        assert (tmp_path / "precious").read_text() == "keep" and not (tmp_path / "absent").exists()

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(UsageError, match="pipe"):
            open_in_place(tmp_path / "pipe")

    def test_a_file_keeps_its_content(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("abc")
        for name, content in (("a", b"abc"), ("new", b"")):
            descriptor = open_in_place(tmp_path / name)
            assert os.read(descriptor, 9) == content
            os.close(descriptor)
