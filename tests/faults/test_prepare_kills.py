"""`prepare` killed at chosen points: the next one with the same `--out` gives equal files, and nothing else is left."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import DataError, UsageError
from pretune.core.io import atomic_directory, directories, remove_abandoned
from pretune.data.prepare import dedup_split, run
from pretune.data.prepare.run import merge
from pretune.data.prepare.stage import StageWriter
from pretune.data.shards import ShardWriter
from pretune.runs.prepare import prepare
from pretune.text.corpora import items
from tests.data.texts import MANY, blocks, byte_tokenizer, tree
from tests.faults.deaths import die, ended, forked, watched

POINTS: dict[str, tuple[Any, str, bool]] = {
    "while hashing": (items, "sha256", True),
    "after hashing": (run, "list_parts", False),
    "before the first document": (StageWriter, "add", False),
    "while reading": (StageWriter, "add", True),
    "after reading": (StageWriter, "close", True),
    "before deciding": (run, "write_splits", False),
    "after deciding": (dedup_split, "assign_splits", True),
    "between shards": (ShardWriter, "close", True),
    "before the card": (run, "write_card", False),
    "before the manifests": (run, "_write_manifests", False),
    "before publishing": (directories, "_sync_tree", False),
    "after publishing": (run, "_check_size", False),
}
"""The life of a `prepare`: the owner of a function, its name, and whether the kill comes after it or before it."""

QUICK = {("while reading", 2), ("before publishing", 0)}


def test_every_point_exists() -> None:
    assert [name for owner, name, _ in POINTS.values() if not callable(getattr(owner, name, None))] == []


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    return [blocks(tmp_path / "a.txt", MANY[:150]), blocks(tmp_path / "b.txt", MANY[150:])]


def killed(work: Callable[[], object], prepared: Callable[[], object]) -> None:
    """Do something in a process that is killed: `prepared` arms the kill."""

    def child() -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads are not here after a fork
        prepared()
        work()

    assert ended(forked(child)) == -signal.SIGKILL


def arm(owner: Any, name: str, after: bool) -> None:
    """Let this process be killed at a function."""
    real = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> None:
        if after:
            real(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, call)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".tmp-*")]


@pytest.mark.parametrize(
    ("point", "workers"),
    [
        pytest.param(point, workers, marks=() if (point, workers) in QUICK else pytest.mark.slow)
        for point in POINTS
        for workers in (0, 2)
    ],
)
def test_a_new_directory(tmp_path: Path, tokenizer: Path, given: list[str], point: str, workers: int) -> None:
    straight = prepare(given, tokenizer=tokenizer, out=tmp_path / "straight", workers=0).path
    place = tmp_path / "place"

    def work(workers: int = workers) -> None:
        prepare(given, tokenizer=tokenizer, out=place / "data", workers=workers)

    killed(work, lambda: arm(*POINTS[point]))
    work(0)
    assert tree(place / "data") == tree(straight)
    assert [path.name for path in place.iterdir()] == ["data"] and leftovers(tmp_path) == []


def test_data_that_is_up_to_date(tmp_path: Path, tokenizer: Path, given: list[str]) -> None:
    out = tmp_path / "data"
    straight = tree(prepare(given, tokenizer=tokenizer, out=out, workers=0).path)
    other = {"tokenizer": tokenizer, "out": out, "holdout": "5%", "overwrite": True, "workers": 0}
    killed(lambda: prepare(given, **other), lambda: arm(*POINTS["while reading"]))  # type: ignore[arg-type]
    assert leftovers(out)
    assert not prepare(given, tokenizer=tokenizer, out=out).is_new
    assert tree(out) == straight and leftovers(tmp_path) == []


def moments(work: Callable[[], object]) -> int:
    """Count the calls that change the file system."""
    with watched(lambda _: None) as count:
        work()
        return count()


def sparse(every: int) -> list[int]:
    """Some of the calls: each of the last ones, which publish, and few of those before."""
    return sorted({*range(1, every + 1, 13), *range(max(1, every - 40), every + 1)})


def killed_at_call(moment: int, work: Callable[[], object]) -> None:
    def watch() -> None:
        with watched(die(moment)):
            work()

    killed(watch, lambda: None)


@pytest.mark.slow
def test_an_empty_directory_at_many_calls(tmp_path: Path, tokenizer: Path, given: list[str]) -> None:
    def work(out: Path) -> None:
        out.mkdir(exist_ok=True)
        prepare(given, tokenizer=tokenizer, out=out, workers=0)

    every = moments(lambda: work(tmp_path / "straight"))
    straight = tree(tmp_path / "straight")
    for moment in sparse(every):
        out = tmp_path / f"at-{moment}"
        killed_at_call(moment, lambda: work(out))  # noqa: B023
        work(out)
        assert tree(out) == straight and leftovers(tmp_path) == [], moment


@pytest.mark.slow
def test_an_overwrite_at_many_calls(tmp_path: Path, tokenizer: Path, given: list[str]) -> None:
    def old(out: Path) -> None:
        prepare(given, tokenizer=tokenizer, out=out, holdout=0, workers=0)

    def new(out: Path, overwrite: bool = True) -> None:
        prepare(given[:1], tokenizer=tokenizer, out=out, holdout="10%", workers=0, overwrite=overwrite)

    old(tmp_path / "straight")
    before = tree(tmp_path / "straight")
    every = moments(lambda: new(tmp_path / "straight"))
    straight = tree(tmp_path / "straight")
    for moment in sparse(every):
        out = tmp_path / f"at-{moment}"
        old(out)
        killed_at_call(moment, lambda: new(out))  # noqa: B023
        try:
            new(out, overwrite=False)
        except DataError:  # the old data is still there, and stays
            assert {name: data for name, data in tree(out).items() if ".tmp-" not in name} == before, moment
            new(out)
        assert tree(out) == straight and leftovers(tmp_path) == [], moment


def test_merging(tmp_path: Path, tokenizer: Path, given: list[str]) -> None:
    slices = [prepare(given, tokenizer=tokenizer, out=tmp_path / f"{n}", shard=f"{n}/2", workers=0) for n in (1, 2)]
    straight = tree(merge(slices, out=tmp_path / "straight").path)
    killed(lambda: merge(slices, out=tmp_path / "data"), lambda: arm(*POINTS["between shards"]))
    assert leftovers(tmp_path)
    assert tree(merge(slices, out=tmp_path / "data").path) == straight and leftovers(tmp_path) == []


class TestOthers:
    """Files that do not belong to a dead writer of the same directory."""

    def test_a_live_writer(self, tmp_path: Path) -> None:
        with atomic_directory(tmp_path / "data") as mine:
            (mine / "a").write_text("mine")
            remove_abandoned(tmp_path / "data")
            with pytest.raises(KeyboardInterrupt), atomic_directory(tmp_path / "data"):
                raise KeyboardInterrupt
            assert (mine / "a").read_text() == "mine"
        assert tree(tmp_path) == {"data/a": b"mine"}

    def test_a_writer_of_another_directory(self, tmp_path: Path) -> None:
        def work() -> None:
            with atomic_directory(tmp_path / "other"):
                os.kill(os.getpid(), signal.SIGKILL)

        killed(work, lambda: None)
        with atomic_directory(tmp_path / "data"):
            pass
        assert len(leftovers(tmp_path)) == 1
        with atomic_directory(tmp_path / "other"):
            pass
        assert leftovers(tmp_path) == []

    def test_a_child_does_not_hold_its_parents_lock(self, tmp_path: Path) -> None:
        read, write = os.pipe()

        def wait() -> None:
            os.close(write)
            os.read(read, 1)  # until the test closes the other end

        def work() -> None:
            with atomic_directory(tmp_path / "data"):
                forked(wait)
                os.kill(os.getpid(), signal.SIGKILL)

        killed(work, lambda: None)
        remove_abandoned(tmp_path / "data")
        assert leftovers(tmp_path) == []
        os.close(write)
        os.close(read)

    def test_files_of_somebody_else(self, tmp_path: Path, tokenizer: Path, given: list[str]) -> None:
        out = tmp_path / "data"
        out.mkdir()
        killed(lambda: prepare(given, tokenizer=tokenizer, out=out), lambda: arm(*POINTS["while reading"]))
        (out / "notes.txt").write_text("mine")
        with pytest.raises(UsageError):
            prepare(given, tokenizer=tokenizer, out=out)
        assert tree(out) == {"notes.txt": b"mine"}
