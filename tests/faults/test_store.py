"""Checkpoints under kills, damage and full disks (R1, R2, R5): what is found is whole, and something is found."""

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pretune.cli import main
from pretune.core.errors import CheckpointError, PretuneError, ResourceError, UsageError
from pretune.core.io import MANIFEST
from pretune.core.run_dir import RunLock
from pretune.training.checkpoints import Checkpoint, list_checkpoints, open_checkpoint
from pretune.training.checkpoints.manager import CheckpointManager
from tests.faults.deaths import Dead, die, ended, fail, forked, seem_dead, watched
from tests.selection import is_thorough, keep_quick

FILES = [MANIFEST, "model.safetensors", "optimizer.safetensors", "state.json"]
RUN = {"config": "c" * 64, "data": "d" * 64}


def content(mark: int, size: int = 6) -> dict[str, dict[str, Tensor]]:
    """Tensors that tell which save they are of."""
    values = torch.arange(size, dtype=torch.float32) + mark
    return {
        "model": {"weight": values, "tied": values, "half": values.bfloat16()},
        "optimizer": {"moment": -values, "step": torch.tensor(mark)},
    }


def store(run: Path, notes: list[str] | None = None, keep: int = 2) -> CheckpointManager:
    return CheckpointManager(
        run / "checkpoints", max_checkpoints=keep, on_warning=[].append if notes is None else notes.append
    )


def save(run: Path, *steps: int, size: int = 6, score: float | None = None) -> None:
    made = store(run)
    for step in steps:
        made.save(step, content(step, size), {**RUN, "mark": step}, score=score)
    made.wait()


def assert_is(found: Checkpoint | None, mark: int, size: int = 6) -> None:
    """It is that save, bit for bit."""
    assert found is not None and found.facts == {**RUN, "mark": mark}
    for group, tensors in content(mark, size).items():
        loaded = found.load_tensors(group)
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor)


@pytest.fixture
def fast() -> Iterator[Path]:
    """A directory in memory where there is such a place: for tests that write hundreds of times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the checkpoints 10 and 20."""
    run = tmp_path_factory.mktemp("two") / "run"
    save(run, 10, 20)
    return run


@pytest.fixture
def run(two: Path, tmp_path: Path) -> Path:
    return shutil.copytree(two, tmp_path / "run")


# Killed


@pytest.mark.parametrize("step", keep_quick([30, 20], 30), ids=["a new step", "a step that is there"])
def test_killed_between_any_two_calls(step: int, two: Path, fast: Path) -> None:
    """A real kill -9 before each thing that a save asks of the system; afterwards the run goes on.

    `make test` tries every third of them.
    """
    stride = 1 if is_thorough() else 3
    found: list[int] = []
    ends: list[int] = []
    while not ends or ends[-1] != 0:
        run = shutil.copytree(two, fast / f"{len(ends)}")
        moment = stride * len(ends) + 1

        def work(run: Path = run, moment: int = moment) -> None:
            with RunLock(run, on_warning=print), watched(die(moment)):
                made = store(run)
                made.save(step, content(33), {**RUN, "mark": 33}, wait=True)

        ends.append(ended(forked(work)))
        notes: list[str] = []
        latest = store(run, notes).find_latest(RUN)
        assert notes == [] and latest is not None
        found.append(latest.facts["mark"])
        assert_is(latest, found[-1])
        with RunLock(run, on_warning=notes.append) as lock:
            after = store(run, notes)
            after.remove_unfinished(lock)
            after.save(40, content(40), {**RUN, "mark": 40}, wait=True)
            assert_is(after.find_latest(RUN), 40)
        assert len(notes) <= 2 and not [path for path in (run / "checkpoints").iterdir() if "tmp" in path.name]
        assert sorted(open_checkpoint(path).step for path in list_checkpoints(run / "checkpoints"))[-2:] in (
            [20, 40],
            [30, 40],
        )
    assert set(ends[:-1]) == {-signal.SIGKILL}
    assert stride * len(ends) > 25  # the files of a save, and what is done around them
    assert found == sorted(found) and set(found) == {20, 33}  # from some moment on it is the new one


def kill_at_random(run: Path, seed: int) -> tuple[int, int]:
    """Kill a process that saves all the time; the last step it knew to be saved, and the one found."""
    size = 1 << 19
    reader, writer = os.pipe()

    def work() -> None:
        torch.set_num_threads(1)
        made = store(run)
        for step in range(1, 1000):
            made.save(step, content(step, size), {**RUN, "mark": step}, wait=step % 2 == 0)
            if step % 2 == 0:
                os.write(writer, bytes([step % 256]))

    pid = forked(work)
    os.close(writer)
    known = os.read(reader, 1)[0]
    time.sleep(random.Random(seed).random() * 0.3)
    os.kill(pid, signal.SIGKILL)
    assert ended(pid) == -signal.SIGKILL
    while more := os.read(reader, 1):
        known = more[0]
    os.close(reader)
    notes: list[str] = []
    latest = store(run, notes).find_latest(RUN)
    assert latest is not None and notes == []
    assert_is(latest, latest.step, size)
    return known, latest.step


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 50))])
def test_killed_at_a_random_instant(seed: int, fast: Path) -> None:
    known, found = kill_at_random(fast, seed)
    assert known <= found <= known + 2


# Damaged


def flip(file: Path, bit: int) -> None:
    with file.open("r+b") as opened:  # in its place: a file written anew is flushed by some systems
        opened.seek(bit // 8)
        byte = opened.read(1)[0] ^ 1 << bit % 8
        opened.seek(bit // 8)
        opened.write(bytes([byte]))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "emptied": lambda file: os.truncate(file, 0),
    "deleted": Path.unlink,
    "first bit": lambda file: flip(file, 0),
    "middle bit": lambda file: flip(file, file.stat().st_size * 4),
    "last bit": lambda file: flip(file, file.stat().st_size * 8 - 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_newest_is_skipped_and_named(
    name: str, damage: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "checkpoints" / "step-00000020" / name
    DAMAGES[damage](file)
    notes: list[str] = []
    assert_is(store(run, notes).find_latest(RUN), 10)
    named = str(file.parent if name == MANIFEST else file)  # a manifest that lies is known by the file it lies about
    assert len(notes) == 1 and named in notes[0]
    assert notes[0].isprintable()
    assert main(["verify", str(run)]) == 4
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith(f"pretune: error: {named}")
    assert "step-00000010" in err  # the one that is left


@pytest.mark.parametrize("name", [MANIFEST, "state.json"])
def test_every_single_bit_of_what_is_read_as_text(name: str, run: Path) -> None:
    folder = run / "checkpoints" / "step-00000020"
    bits = (folder / name).stat().st_size * 8
    for bit in random.Random(0).sample(range(bits), min(bits, 1500)):
        flip(folder / name, bit)
        with pytest.raises(CheckpointError):
            open_checkpoint(folder)
        flip(folder / name, bit)
    open_checkpoint(folder)


def test_all_damaged_is_an_error_and_all_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints/step-00000020/model.safetensors").unlink()
    flip(run / "checkpoints/step-00000010/state.json", 9)
    notes: list[str] = []
    with pytest.raises(CheckpointError, match=r"00020/model\.safetensors"):
        store(run, notes).find_latest(RUN)
    assert len(notes) == 2
    assert main(["verify", str(run)]) == 4
    err = capsys.readouterr().err
    assert "00020/model.safetensors: " in err and "00010/state.json: " in err


def test_a_file_in_the_place_of_a_checkpoint(run: Path) -> None:
    (run / "checkpoints" / "step-00000030").write_text("hello")
    notes: list[str] = []
    assert_is(store(run, notes).find_latest(RUN), 20)
    assert len(notes) == 1
    save(run, 30, 40)
    assert_is(store(run).find_latest(RUN), 40)
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == ["step-00000040", "step-00000030"]


# The disk


def test_a_fault_of_the_disk_at_any_moment(two: Path, fast: Path) -> None:
    """Whatever call fails: one line, code 6, raised once; a whole checkpoint is there and saving goes on."""
    for moment in range(1, 1000):
        run = shutil.copytree(two, fast / str(moment))
        made = store(run)
        raised = False
        with watched(fail(moment)) as count:
            made.save(30, content(30), {**RUN, "mark": 30})
            try:
                made.wait()
            except ResourceError as error:
                assert str(run) in str(error) and str(error).isprintable() and error.exit_code == 6
                raised = True
        if not raised:  # a fault that does not matter, as in making a directory that is there, or none
            assert_is(made.find_latest(RUN), 30)
            if count() < moment:
                break
        made.wait()  # the error is told once
        latest = made.find_latest(RUN)
        assert latest is not None and latest.step in (20, 30)
        assert_is(latest, latest.step)
        made.save(40, content(40), {**RUN, "mark": 40}, wait=True)
        assert_is(made.find_latest(RUN), 40)
    assert 15 < moment < 100


def test_the_next_save_tells_of_the_fault_too(run: Path) -> None:
    made = store(run)
    with watched(fail(3, errno.EROFS)):
        made.save(30, content(30), RUN)
        with pytest.raises(ResourceError, match=str(run)):
            made.save(40, content(40), RUN)
    assert_is(made.find_latest(RUN), 20)


def test_files_too_large_for_the_system(run: Path) -> None:
    """A limit of the system, in a real child: EFBIG from the library that writes the tensors."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        made = store(run)
        made.save(30, content(30, 1 << 20), {**RUN, "mark": 30})
        try:
            made.wait()
        except ResourceError as error:
            assert str(run) in str(error)
            os._exit(error.exit_code)

    assert ended(forked(work)) == 6
    assert_is(store(run).find_latest(RUN), 20)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000010", "step-00000020"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_and_a_read_only_one(small_disk: Path) -> None:
    save(small_disk, 10, 20)
    made = store(small_disk)
    made.save(30, content(30, 1 << 18), RUN)
    with pytest.raises(ResourceError, match=str(small_disk)):
        made.wait()
    assert_is(made.find_latest(RUN), 20)
    made.save(40, content(40), {**RUN, "mark": 40}, wait=True)  # a smaller one fits
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    made.save(50, content(50), RUN)
    with pytest.raises(ResourceError, match=str(small_disk)):
        made.wait()
    with pytest.raises(ResourceError, match=str(small_disk)), RunLock(small_disk, on_warning=print):
        pass
    assert_is(made.find_latest(RUN), 40)
    assert main(["verify", str(small_disk)]) == 0


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("hello")
    made = store(tmp_path)
    with pytest.raises(CheckpointError, match=str(tmp_path / "checkpoints")):
        made.find_latest(RUN)
    with pytest.raises(UsageError, match=str(tmp_path / "checkpoints")):
        made.save(10, content(10), RUN, wait=True)


# All of it together


def damage(folder: Path, rng: random.Random) -> None:
    """Something bad happens to one file of a checkpoint, if there is one."""
    files = [file for file in sorted(folder.iterdir()) if file.stat().st_size]
    if files:
        DAMAGES[rng.choice(sorted(DAMAGES))](rng.choice(files))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), keep=st.integers(2, 3))
def test_whatever_happens_what_is_found_is_whole(data: st.DataObject, keep: int, fast: Path) -> None:
    """Saves (of new and old steps), deaths at any call, damages: never a wrong tensor, nothing whole is lost."""
    run = Path(tempfile.mkdtemp(dir=fast))
    written: dict[int, tuple[int, float | None]] = {}  # mark -> step, score
    step = 1

    def alive() -> dict[int, Checkpoint]:
        found = {}
        for folder in list_checkpoints(run / "checkpoints"):
            try:
                found[open_checkpoint(folder).facts["mark"]] = open_checkpoint(folder)
            except PretuneError:
                continue
        return found

    for mark in range(data.draw(st.integers(1, 10), "actions")):
        rng = data.draw(st.randoms(use_true_random=False))
        before = alive()
        match data.draw(st.sampled_from(["save", "save", "die", "damage"]), "action"):
            case "damage":
                folders = list_checkpoints(run / "checkpoints")
                if folders:
                    damage(rng.choice(folders), rng)
            case action:
                step += data.draw(st.integers(0, 2), "later")
                score = data.draw(st.none() | st.integers(0, 5).map(float), "score")
                written[mark] = (step, score)
                moment = data.draw(st.integers(1, 60), "moment") if action == "die" else 10**9
                made = store(run, keep=keep)
                with watched(seem_dead(moment)):
                    made.save(step, content(mark), {**RUN, "mark": mark}, score=score)
                    try:
                        made.wait()
                    except Dead:
                        action = "died"
                after = alive()
                replaced = {old for old in before if before[old].step == step}
                if action == "save":
                    assert mark in after
                    assert len(after) >= min(keep, len(before.keys() - replaced) + 1)
                    scores = [f.score for old, f in before.items() if f.score is not None and old not in replaced]
                    best = min([*scores, *([score] if score is not None else [])], default=None)
                    assert min((f.score for f in after.values() if f.score is not None), default=None) == best
                else:  # of two checkpoints of one step, the older was being replaced when a process died
                    newest = {found.step: old for old, found in sorted(before.items())}
                    assert mark in after or after.keys() >= {*newest.values()}
        latest = store(run).find_latest(RUN) if alive() or not list_checkpoints(run / "checkpoints") else None
        if latest is not None:
            assert_is(latest, latest.facts["mark"])
            assert (latest.step, latest.score) == written[latest.facts["mark"]]
            assert latest.step == max(found.step for found in alive().values())
        else:
            assert not alive()
