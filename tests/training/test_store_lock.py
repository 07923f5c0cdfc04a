import contextlib
import errno
import fcntl
import json
import os
import signal
import time
from pathlib import Path

import pytest

from pretune.core.errors import CheckpointError, UsageError
from pretune.core.run_dir import LOCK_FILE, RunLock
from pretune.training.checkpoints import manager
from pretune.training.checkpoints.manager import CheckpointManager
from tests.faults.deaths import ended, forked


def lock(directory: Path, notes: list[str] | None = None) -> RunLock:
    return RunLock(directory, on_warning=[].append if notes is None else notes.append)


def test_one_after_the_other_and_nothing_is_left(tmp_path: Path) -> None:
    notes: list[str] = []
    for _ in range(2):
        with lock(tmp_path / "a" / "run", notes) as held:
            assert held.is_held
            who = json.loads((tmp_path / "a" / "run" / LOCK_FILE).read_text())
            assert who["pid"] == os.getpid()
        assert not held.is_held
    assert notes == [] and list((tmp_path / "a" / "run").iterdir()) == []


def test_two_in_one_process(tmp_path: Path) -> None:
    with lock(tmp_path):
        with pytest.raises(UsageError, match=rf"^{tmp_path}: .*pid {os.getpid()}\b"):
            lock(tmp_path).__enter__()
        with pytest.raises(UsageError):  # the refused one took nothing away
            lock(tmp_path).__enter__()
    with lock(tmp_path):
        pass


def test_two_processes_and_a_killed_one(tmp_path: Path) -> None:
    """The second is refused while the first lives, however its child goes on; after a kill it is taken at once."""
    reader, writer = os.pipe()

    def hold() -> None:
        with lock(tmp_path):
            worker = forked(lambda: time.sleep(1000))  # outlives its parent
            os.write(writer, worker.to_bytes(4, "little"))
            time.sleep(1000)

    pid = forked(hold)
    worker = int.from_bytes(os.read(reader, 4), "little")
    try:
        with pytest.raises(UsageError, match=rf"pid {pid}\b"):
            lock(tmp_path).__enter__()
        os.kill(pid, signal.SIGKILL)
        assert ended(pid) == -signal.SIGKILL
        notes: list[str] = []
        with lock(tmp_path, notes):
            assert len(notes) == 1 and f"pid {pid} " in notes[0]
    finally:
        for process in (pid, worker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"pid": 2**22 + 1, "host": "here", "since": "then"}),
        json.dumps({"pid": os.getpid(), "host": "here", "since": "then"}),  # the number is another process's now
        json.dumps({"pid": 1, "host": "elsewhere", "since": "then"}),
        "half a te",
        "",
    ],
    ids=["dead", "reused", "elsewhere", "half", "empty"],
)
def test_what_the_dead_left_is_taken(text: str, tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text(text)
    notes: list[str] = []
    with lock(tmp_path, notes):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    assert len(notes) == bool(text)


def test_many_at_once_and_one_wins(tmp_path: Path) -> None:
    """Each process that gets in looks whether another is inside."""

    def work() -> None:
        for _ in range(200):
            try:
                with lock(tmp_path):
                    (tmp_path / "inside").mkdir()
                    (tmp_path / "inside").rmdir()
            except UsageError:
                continue

    assert [ended(pid) for pid in [forked(work) for _ in range(4)]] == [0] * 4


def test_a_file_that_its_last_holder_removes_just_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening it and locking it: what is locked then is nobody's file any more."""
    real, calls = fcntl.flock, 0

    def flock(descriptor: int, how: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            (tmp_path / LOCK_FILE).unlink()
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock(tmp_path):
        assert calls == 2 and (tmp_path / LOCK_FILE).exists()
        with pytest.raises(UsageError):
            lock(tmp_path).__enter__()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    notes: list[str] = []
    with lock(tmp_path, notes) as held:
        assert held.is_held
    assert len(notes) == 1 and str(tmp_path) in notes[0]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("hello")
    with pytest.raises(UsageError, match=str(tmp_path / "run")):
        lock(tmp_path / "run").__enter__()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError):
        lock(tmp_path / "run").__enter__()
    assert (tmp_path / "precious").read_text() == "keep"


def test_checkpoints_behind_a_link_are_left(tmp_path: Path) -> None:
    """A directory of a stranger: `checkpoints` is a link to those of another run, which would expire."""
    (tmp_path / "other" / "checkpoints" / "step-00000001").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to("../other/checkpoints")
    with RunLock(tmp_path / "run", on_warning=print) as lock, pytest.raises(UsageError, match="link"):
        CheckpointManager(tmp_path / "run" / "checkpoints", on_warning=print).remove_unfinished(lock)
    with pytest.raises(UsageError, match="link"):
        manager._remove(tmp_path / "run" / "checkpoints" / "step-00000001")
    assert (tmp_path / "other" / "checkpoints" / "step-00000001").is_dir()


@pytest.mark.parametrize("name", ["notes", "step-1", "..", "step-00000001.bak"])
def test_only_checkpoints_are_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / "checkpoints" / name).mkdir(parents=True, exist_ok=True)
    with pytest.raises(ValueError, match="pattern"):
        manager._remove(tmp_path / "checkpoints" / name)
    assert (tmp_path / "checkpoints" / name).exists()


def test_a_lock_is_free_after_a_recovery_that_failed(tmp_path: Path) -> None:
    (tmp_path / ".commit-0123456789ab").mkdir()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="JOURNAL"):
            lock(tmp_path).__enter__()
    (tmp_path / ".commit-0123456789ab").rmdir()
    with lock(tmp_path):
        pass
