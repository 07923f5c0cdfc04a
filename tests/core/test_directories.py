"""Removal and recovery stay inside a directory, whatever its files say."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import CheckpointError, PretuneError, UsageError
from pretune.core.io import MANIFEST, atomic_directory, recover, remove, sweep
from tests.faults.deaths import ended, forked

COMMIT = ".commit-0123456789ab"


def tree(folder: Path) -> dict[str, bytes | str]:
    """Every file and link below a directory."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() or path.is_symlink()
    }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory to write into, and a file and a folder beside it that belong to others."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "config.json").write_text("theirs")
    (tmp_path / "file").write_text("theirs")
    return tmp_path


def commit(folder: Path, staged_files: dict[str, str], **journal: Any) -> Path:
    """Write what a killed writer, or somebody else, may have left."""
    staged = folder / COMMIT
    for name, text in staged_files.items():
        (staged / name).parent.mkdir(parents=True, exist_ok=True)
        (staged / name).write_text(text)
    staged.mkdir(exist_ok=True)
    (staged / "JOURNAL.json").write_text(json.dumps({"owner": None, "files": list(staged_files), **journal}))
    return staged


class TestRemove:
    @pytest.mark.parametrize(
        "name",
        ["../victim", "../file", "..", ".", "", "/etc/passwd", "a/../../file", "a\\b", "a\0b", "other", "x" * 300],
    )
    def test_only_names_of_the_pattern(self, place: Path, name: str) -> None:
        before = tree(place)
        with pytest.raises(ValueError, match="pattern"):
            remove(place / "mine", name, r"part-\d+|\.\./\w+")
        assert tree(place) == before

    def test_a_name_is_removed(self, place: Path) -> None:
        (place / "mine" / "part-1").mkdir()
        (place / "mine" / "part-1" / "a").write_text("")
        remove(place / "mine", "part-1", r"part-\d+")
        remove(place / "mine", "part-2", r"part-\d+")
        assert list((place / "mine").iterdir()) == []

    def test_a_link_is_removed_and_not_followed(self, place: Path) -> None:
        (place / "mine" / "part-1").symlink_to("../victim")
        remove(place / "mine", "part-1", r"part-\d+")
        assert list((place / "mine").iterdir()) == [] and (place / "victim" / "config.json").is_file()

    def test_nothing_below_a_link(self, place: Path) -> None:
        (place / "mine" / "link").symlink_to("../victim")
        with pytest.raises(UsageError, match="link"):
            remove(place / "mine", "link/config.json", r"link/.*")
        assert (place / "victim" / "config.json").is_file()

    def test_other_hidden_files_are_not_swept(self, place: Path) -> None:
        for name in (".tmp-notes", ".tmp-0123456789ab", f".tmp-{'0' * 12}-{'1' * 12}", COMMIT):
            (place / "mine" / name).mkdir()
        assert sweep(place / "mine") == 2
        assert sorted(path.name for path in (place / "mine").iterdir()) == [COMMIT, ".tmp-notes"]


class TestRecovery:
    def test_a_commit_is_completed(self, place: Path) -> None:
        folder = place / "mine"
        (folder / "notes.txt").write_text("mine")
        (folder / "model-00001-of-00002.safetensors").write_text("old")
        commit(folder, {"config.json": "new", "inner/a": "new", MANIFEST: "new"}, owner="model")
        recover(folder)
        assert tree(folder) == {"notes.txt": b"mine", "config.json": b"new", "inner/a": b"new", MANIFEST: b"new"}
        assert sorted(path.name for path in folder.iterdir()) == [MANIFEST, "config.json", "inner", "notes.txt"]

    def test_moved_files_are_not_stale(self, place: Path) -> None:
        """A kill between two moves: what is already in place is not removed by the next attempt."""
        folder = place / "mine"
        (folder / "model.safetensors").write_text("new")
        commit(folder, {"config.json": "new"}, owner="model", files=["config.json", "model.safetensors"])
        recover(folder)
        assert tree(folder) == {"config.json": b"new", "model.safetensors": b"new"}

    @pytest.mark.parametrize(
        "journal",
        [
            {"owner": "pretune.core.io"}, {"owner": 3}, {"owner": ["model"]}, {"files": None}, {"files": ["../victim"]},
            {"files": [3]}, {"files": "config.json"}, {"files": ["/etc/passwd"]}, {"files": ["a//b"]},
        ],
    )  # fmt: skip
    def test_a_hostile_journal(self, place: Path, journal: dict[str, Any]) -> None:
        commit(place / "mine", {"config.json": "new"}, **journal)
        before = tree(place)
        with pytest.raises(CheckpointError, match="JOURNAL"):
            recover(place / "mine")
        assert tree(place) == before

    def test_nothing_is_moved_or_removed_below_a_link(self, place: Path) -> None:
        folder = place / "mine"
        (folder / "generator").symlink_to("../victim")
        commit(folder, {"other": "new"}, owner="model")
        recover(folder)
        assert tree(place / "victim") == {"config.json": b"theirs"}
        commit(folder, {"generator/config.json": "new"}, owner="model")
        with pytest.raises(PretuneError, match="link"):
            recover(folder)
        assert tree(place / "victim") == {"config.json": b"theirs"}

    def test_a_commit_that_is_a_link(self, place: Path) -> None:
        commit(place / "victim", {"config.json": "new"})
        (place / "mine" / COMMIT).symlink_to(f"../victim/{COMMIT}")
        before = tree(place)
        recover(place / "mine")
        assert tree(place) == before

    def test_links_in_a_commit_stay_links(self, place: Path) -> None:
        staged = commit(place / "mine", {})
        (staged / "a").symlink_to("../../victim/config.json")
        (staged / "folder").symlink_to("../../victim")
        recover(place / "mine")
        assert tree(place / "victim") == {"config.json": b"theirs"} and (place / "mine" / "a").is_symlink()

    @pytest.mark.parametrize("name", ["missing", "file", "a\0b", "x" * 5000])
    def test_where_there_is_no_directory(self, place: Path, name: str) -> None:
        recover(place / name)

    def test_the_next_writer_completes_the_last_one(self, place: Path) -> None:
        commit(place / "mine", {"a": "first"})
        with pytest.raises(UsageError, match="not empty"), atomic_directory(place / "mine"):
            pytest.fail("the block ran")
        commit(place / "mine", {"a": "second"})
        with atomic_directory(place / "mine", overwrite=True) as folder:
            (folder / "b").write_text("third")
        assert tree(place / "mine") == {"a": b"second", "b": b"third"}

    def test_a_writer_inside_a_writer(self, place: Path) -> None:
        with atomic_directory(place / "mine") as outer:
            (outer / "a").write_text("outer")
            with atomic_directory(outer, overwrite=True) as inner:
                (inner / "b").write_text("inner")
        assert tree(place / "mine") == {"a": b"outer", "b": b"inner"}

    def test_two_writers_at_once(self, place: Path) -> None:
        """The files of one, then those of the other: never a mixture."""

        def write(text: str) -> None:
            with atomic_directory(place / "mine", overwrite=True) as folder:
                for name in "abcdefgh":
                    (folder / name).write_text(text)

        for _ in range(5):
            children = [forked(lambda text=text: write(text)) for text in "12345"]  # type: ignore[misc]
            assert [ended(child) for child in children] == [0] * 5
            assert len({(place / "mine" / name).read_text() for name in "abcdefgh"}) == 1
        assert sorted(path.name for path in (place / "mine").iterdir()) == [*"abcdefgh"]
