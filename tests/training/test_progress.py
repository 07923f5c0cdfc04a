"""Progress display: lines without a terminal, a bar with one, a table at the end, all on stderr."""

import io
import re
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from pretune.core import log
from pretune.training.cost import CostRates, Energy, Totals, compute_cost
from pretune.training.progress import Progress, build_rows, show_summary
from pretune.training.records import RunSummaryRecord
from tests.conftest import Screen

Capture = pytest.CaptureFixture[str]


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def quiet() -> Iterator[None]:
    log.set_quiet(True)
    yield
    log.set_quiet(False)


def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """stderr as a terminal; to be asked for inside a test, for pytest sets stderr before each."""

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    return screen


def run(clock: Clock, steps: int, seconds: float, start: int = 0, **options: Any) -> None:
    """Steps of so many seconds with 1000 tokens and 50 FLOPs each."""
    with Progress("tiny", timer=clock, **options) as shown:
        for step in range(start + 1, start + steps + 1):
            clock.time += seconds
            shown(step, elapsed_seconds=step * seconds, tokens=1000 * step, flops=50.0 * step, loss=8 / step)


def figures(text: str) -> list[list[str]]:
    """The numbers of each line."""
    return [re.findall(r"(?<![\w.])\d+(?:[.,:]\d+)*[kMGTP]?%?", line) for line in text.splitlines()]


def test_a_line_every_ten_seconds_and_at_the_end(capsys: Capture) -> None:
    run(Clock(), 50, 0.5, total=50, peak=200.0)
    out, err = capsys.readouterr()
    assert out == ""
    assert all(line.startswith("tiny: ") for line in err.splitlines())
    assert figures(err) == [
        ["1", "50", "8"],
        ["21", "50", "0.381", "2k", "50%", "0:14"],
        ["41", "50", "0.1951", "2k", "50%", "0:04"],
        ["50", "50", "0.16", "2k", "50%", "0:00"],
    ]


class Beside:
    """Evaluation that took so many seconds so far, and so many more are expected."""

    def __init__(self, later: float) -> None:
        self.seconds, self.later = 0.0, later

    def get_elapsed(self) -> float:
        return self.seconds

    def estimate_remaining(self, pace: float, step: int) -> float:
        return self.later


def left(err: str) -> list[int]:
    """Seconds that were left, line by line."""
    return [60 * int(minutes) + int(seconds) for minutes, seconds in re.findall(r"(\d+):(\d\d)\b", err)]


def test_the_time_left_covers_what_follows_the_steps(capsys: Capture) -> None:
    run(Clock(), 50, 0.5, total=50, overhead=Beside(90.0))
    assert left(capsys.readouterr().err) == [104, 94, 90]


def test_evaluation_between_steps_is_not_taken_for_a_slow_step(capsys: Capture) -> None:
    clock, beside = Clock(), Beside(0.0)
    with Progress("tiny", timer=clock, total=60, every=1, overhead=beside) as shown:
        for step in range(1, 41):
            clock.time += 1
            if step == 38:
                clock.time += 300
                beside.seconds += 300
            shown(step, elapsed_seconds=float(step))
    assert abs(left(capsys.readouterr().err)[-1] - 20) <= 1


def test_the_time_left_is_smoothed(capsys: Capture) -> None:
    """Slow and fast steps in turn, 0.48 s in the mean: the expected end moves by less than half of the run."""
    clock, ends = Clock(), []
    with Progress("tiny", timer=clock, total=2000, every=1) as shown:
        for step in range(1, 1001):
            clock.time += 2.0 if step % 100 < 20 else 0.1
            shown(step, elapsed_seconds=clock.time)
            result = left(capsys.readouterr().err)
            ends += [clock.time + result[0]] if step > 500 else []
    assert max(ends) - min(ends) < 480 and abs(ends[-1] - 100 - 960) < 240


def test_a_line_every_so_many_steps(capsys: Capture) -> None:
    run(Clock(), 9, 0.001, every=4)
    assert [line[0] for line in figures(capsys.readouterr().err)] == ["1", "5", "9"]


def test_rates_are_recent_and_a_resumed_run_starts_with_none(capsys: Capture) -> None:
    clock = Clock()
    with Progress("tiny", total=2000, timer=clock) as shown:
        for step in range(1001, 1200):
            clock.time += 10.0 if step < 1005 else 1.0  # slow at first
            shown(step, elapsed_seconds=0, tokens=1000 * step)
    first, *_, last = figures(capsys.readouterr().err)
    assert first == ["1,001", "2,000"]
    assert last[1:3] == ["2,000", "1k"] and last[3].startswith("13:")


def test_a_budget_counts_time(capsys: Capture) -> None:
    run(Clock(), 8, 5.0, budget=80.0)
    lines = figures(capsys.readouterr().err)
    assert lines[0] == ["6%", "1", "8", "1:15"]
    assert lines[-1] == ["44%", "7", "1.143", "200", "0:45"]


def test_a_loss_that_is_not_known_or_not_finite(capsys: Capture) -> None:
    with Progress("tiny", timer=Clock()) as shown:
        shown(1, elapsed_seconds=0.0)
    with Progress("tiny", timer=Clock()) as shown:
        shown(1, elapsed_seconds=0.0, loss=float("nan"))
    err = capsys.readouterr().err
    assert figures(err) == [["1"], ["1"]] and [line.endswith("nan") for line in err.splitlines()] == [False, True]


def test_quiet_says_nothing(capsys: Capture, quiet: None) -> None:
    run(Clock(), 50, 0.5, total=50)
    show_summary("tiny", summary())
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    screen = terminal(monkeypatch)
    run(Clock(), 50, 0.5, total=50, peak=200.0)
    drawn = screen.getvalue()
    assert re.search(r"50/50\b.*\b0\.16\b.*\b2k\b.*\b50%.*\b0:00\b", drawn)
    assert "━" in drawn and "\x1b[" in drawn
    assert capsys.readouterr() == ("", "")


def summary(**changes: Any) -> RunSummaryRecord:
    energy = (Energy(what="gpu", how="NVML energy counter", measured=True, joules=3.6e4),)
    paid = compute_cost([Totals(seconds=120.0, flops=3.2e17, energy=energy)], "cpu", CostRates())
    given: dict[str, Any] = {"loss": 3.14159, "held_out": {"loss": 3.2}, "waiting": 0.6, "saving": 1.2, "warnings": []}
    given |= {"steps": 1200, "tokens": 78_643_200, "seconds": 120.0, "evaluating": 6.0, "cost": paid}
    return cast(RunSummaryRecord, given | changes)


def test_the_table_at_the_end(capsys: Capture) -> None:
    show_summary("tiny", summary(skipped=2))
    out, err = capsys.readouterr()
    assert out == ""
    title, *rows = err.splitlines()
    assert title == "tiny" and len(rows) == len(build_rows(summary(skipped=2)))
    assert figures("\n".join(rows)) == [
        ["3.1416"],
        ["3.2000"],
        ["1,200", "2"],
        ["78,643,200"],
        ["2:00"],
        ["655k"],
        ["0.5%"],
        ["1.0%"],
        ["5.0%"],
        ["320P"],
        ["10"],
        ["4.75", "475"],
        ["0.01", "0.3"],
    ]
    assert "NVML energy counter" in err


def test_the_table_on_a_terminal_and_with_a_known_device(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    paid = compute_cost([Totals(seconds=120.0, flops=5.2e16)], "cuda", CostRates(), precision=torch.bfloat16)
    bare = summary(loss=None, held_out={}, cost=paid)
    show_summary("tiny", bare)
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert re.search(r"43\.8%.*\b989T", drawn)
    assert re.search(r"\$0\.13\b.*\$3\.8\b", drawn)
    assert len(build_rows(bare)) == len(build_rows({**bare, "held_out": {"loss": 1.0}})) - 1
