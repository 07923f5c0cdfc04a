"""Data workers under signals and kills (R8): a clear end in bounded time, and never a process left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.selection import keep_quick

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

LIMIT = 60.0  # seconds for anything; machines may be slow
START = """
import signal, sys, time
from pretune.core.errors import PretuneError
from pretune.training.dataloader import DataLoader
from tests.training.counting import Counting
"""


@contextmanager
def script(body: str) -> Iterator["subprocess.Popen[str]"]:
    """A program in a session of its own; all of it is gone afterwards."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-u", "-c", START + body]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            for pid in session(process.pid):
                os.kill(pid, signal.SIGKILL)


def session(leader: int) -> dict[int, str]:
    """The processes of a session that are not dead, and what they were started as."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, _, owner, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(owner) == leader and state != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return True if a condition becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def check_fork(parent: int, workers: list[int]) -> None:
    """The fork server has a single thread: a fork copies one thread, and the locks of all."""
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in workers}
    assert len(parents) == 1 and parent not in parents
    assert len(list(Path(f"/proc/{parents.pop()}/task").iterdir())) == 1


PIDS = """
feed = DataLoader(Counting(slow=0.01), workers=2)
print(*(next(feed)[0].tokens[3].item() for _ in range(2)))
"""


@pytest.mark.slow
def test_a_killed_worker_is_a_clear_error() -> None:
    go_on = """
try:
    for batches in feed:
        time.sleep(0.01)
except PretuneError as error:
    print(type(error).__name__, error)
"""
    with script(PIDS + go_on) as process:
        workers = [int(pid) for pid in line(process).split()]
        check_fork(process.pid, workers)
        os.kill(workers[1], signal.SIGKILL)
        error = line(process)
        assert error.startswith("ResourceError") and "SIGKILL" in error and "train.workers" in error
        assert process.wait(LIMIT) == 0
        assert within(LIMIT, lambda: not session(process.pid))
        assert process.stderr is not None and process.stderr.read() == ""


@pytest.mark.parametrize("phase", keep_quick(["starting", "running"], "running"))
@pytest.mark.slow
def test_nothing_outlives_a_killed_parent(phase: str) -> None:
    body = PIDS if phase == "running" else "feed = DataLoader(Counting(), workers=2)\nprint('started')\n"
    with script(body + "time.sleep(1000)") as process:
        line(process)
        assert len(session(process.pid)) >= 3
        process.kill()
        process.wait(LIMIT)
        assert within(LIMIT, lambda: not session(process.pid)), session(process.pid)


@pytest.mark.slow
def test_signals_to_the_whole_group_are_the_parents_to_judge() -> None:
    """As Ctrl-C at a terminal and schedulers send them: the step at hand and those after it still get their data."""
    body = """
asked = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: asked.append(number))
feed = DataLoader(Counting(slow=0.01), workers=2)  # signals arrive while the workers start
print("started")
while len(asked) < 2:
    time.sleep(0.01)
print(*(next(feed)[0].tokens[3].item() for _ in range(2)))
while len(asked) < 4:
    next(feed)
taken = [next(feed)[0].tokens[0].item() for _ in range(20)]
assert taken == list(range(taken[0], taken[0] + 20))
print("done")
raise SystemExit(9)  # and nobody closes the feed
"""
    with script(body) as process:
        assert line(process) == "started"
        for number in (signal.SIGINT, signal.SIGTERM):
            os.killpg(process.pid, number)
        assert len(line(process).split()) == 2
        for number in (signal.SIGINT, signal.SIGTERM):
            os.killpg(process.pid, number)
        assert line(process) == "done"
        assert process.wait(LIMIT) == 9
        assert process.stderr is not None and process.stderr.read() == ""
        assert within(5, lambda: not session(process.pid))
