"""Work in processes: in order, bounded, the same faults as without, and nobody left behind."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from pretune.core.errors import DataError, ResourceError
from pretune.data.prepare.pool import map_ordered
from pretune.text.corpora.document import UnfitError
from tests.selection import keep_quick

METHODS = [one for one in ("fork", "spawn") if one in multiprocessing.get_all_start_methods()]


@dataclass(frozen=True)
class Squares:
    """Squares numbers; some tasks are not numbers."""

    slow: float = 0.0

    def start(self) -> Callable[[object], object]:
        return self.work

    def work(self, task: object) -> object:
        match task:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(7)
            case "unfit":
                raise UnfitError("reason", "told")
            case "bug":
                raise KeyError("x")
            case "memory":
                raise MemoryError
            case "pid":
                return os.getpid()
        assert isinstance(task, int)
        time.sleep(self.slow if task % 3 == 0 else 0)
        return task * task


def alive() -> list[object]:
    return list(multiprocessing.active_children())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", keep_quick([1, 2], 2))
def test_results_come_in_order(workers: int, method: str) -> None:
    with contextlib.closing(map_ordered(range(20), Squares(0.01), workers, method=method)) as results:
        assert list(results) == [number * number for number in range(20)]
    assert alive() == []


def test_no_workers_is_no_process() -> None:
    assert list(map_ordered(["pid"], Squares(), 0)) == [os.getpid()]
    assert list(map_ordered(["pid"], Squares(), 1)) != [os.getpid()]


def test_nothing_to_do() -> None:
    assert list(map_ordered([], Squares(), 2)) == []


def test_what_is_under_way_is_bounded() -> None:
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number

    with contextlib.closing(map_ordered(tasks(), Squares(), 2)) as results:
        for given, _ in enumerate(results):
            assert taken <= given + 2 * 4 + 2
            if given == 100:
                break
    assert alive() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_fault_in_order_is_told(workers: int) -> None:
    def tasks() -> Iterator[object]:
        yield from (0, 1, "unfit", "bug")
        raise DataError("read")

    results = map_ordered(tasks(), Squares(0.1), workers)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(DataError, match=r"^told$"):
        next(results)
    assert alive() == []


def test_a_fault_in_making_tasks_waits_for_its_turn() -> None:
    def tasks() -> Iterator[int]:
        yield 3
        raise DataError("read")

    results = map_ordered(tasks(), Squares(0.05), 2)
    assert next(results) == 9
    with pytest.raises(DataError, match="read"):
        next(results)


def test_faults_that_are_not_ours() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'x'"):
        list(map_ordered(["bug"], Squares(), 1))
    with pytest.raises(ResourceError):
        list(map_ordered(["memory"], Squares(), 1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("kill", r"SIGKILL.*<kill>"),
        ("exit", r"\b7\b.*<exit>"),
    ],
)
def test_a_worker_that_dies_is_an_error(task: str, message: str, method: str) -> None:
    with pytest.raises(ResourceError, match=message):
        list(map_ordered([1, 2, task, 4, 5, 6], Squares(), 2, label=lambda one: f"<{one}>", method=method))
    assert alive() == []


def test_leaving_early_ends_the_workers() -> None:
    results = map_ordered(range(1000), Squares(0.05), 2)
    next(results)
    assert len(alive()) == 2
    results.close()
    assert alive() == []


def test_a_daemon_works_alone() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_inside, args=(theirs,), daemon=True)
    process.start()
    assert ours.recv() == [0, 1, 4]
    process.join()


def _inside(connection: "multiprocessing.connection.Connection") -> None:
    connection.send(list(map_ordered(range(3), Squares(), 2)))


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    before = signal.getsignal(signal.SIGINT)
    list(map_ordered(range(3), Squares(), 2))
    assert "TOKENIZERS_PARALLELISM" not in os.environ
    assert signal.getsignal(signal.SIGINT) is before
