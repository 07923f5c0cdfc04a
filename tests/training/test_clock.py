"""Length of a run: by steps, by time budget, and repeated from the progress of another run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pretune.training.clock import TrainingClock
from pretune.training.config import LinearSchedule
from pretune.training.distributed import Ranks
from pretune.training.step import StepMetrics, TrainState


class Clock:
    """A run whose steps take a second each, as far as a pace can tell."""

    def __init__(self, first: float = 1.0, state: TrainState | None = None, **settings: Any) -> None:
        self.pace = TrainingClock(**{"schedule": LinearSchedule(), **settings})
        self.state, self.first = state or TrainState(), first
        self.start_time = 0.0
        self.ranks = Ranks(torch.device("cpu"))
        self.rates: list[float] = []

    def phase(self, number: int) -> None:
        """Steps until the phase is over; the first takes longer."""
        self.pace.start_phase(self.state)
        first = self.state.step
        while not self.pace.is_phase_over(self.state, number):
            self.rates.append(self.pace.compute_lr_factor(self.state))
            began = self.state.elapsed_seconds
            self.state.elapsed_seconds = began + (self.first if self.state.step == first else 1.0)
            self.state.step += 1
            self.report(began)
        self.state.phases.append(self.state.step)

    def report(self, began: float) -> None:
        """Tell the pace of the last step."""
        values: dict[str, Any] = {
            "norm": 1.0,
            "tokens": 1,
            "stop_requested": False,
            "lr": 0.0,
            "terms": {},
            "loss": 0.0,
        }
        metrics = StepMetrics(step=self.state.step - 1, ok=True, elapsed_seconds=began, **values)
        self.pace(self, [metrics])  # type: ignore[arg-type]


def test_by_steps() -> None:
    clock = Clock(schedule=LinearSchedule(warmup=2), steps=10, phase_ends=(0.9, 1.0))
    pace, state = clock.pace, clock.state
    clock.phase(0)
    assert state.step == 9 and pace.compute_progress(state) == 0.9
    clock.phase(1)
    assert state.step == 10 and pace.compute_progress(state) == 1.0
    assert (
        clock.rates == [LinearSchedule(warmup=2).compute_factor(step, 10) for step in range(10)] and not state.progress
    )


@pytest.mark.parametrize(("steps", "share", "last"), [(10, 0.9, 9), (1, 0.9, 1), (3, 0.5, 2), (7, 0.01, 0)])
def test_phases_end_at_shares_of_the_steps(steps: int, share: float, last: int) -> None:
    pace = TrainingClock(schedule=LinearSchedule(), steps=steps, phase_ends=(share, 1.0))
    assert pace.find_end_step(0) == last and pace.find_end_step(1) == steps


def test_by_the_clock() -> None:
    """It ends when what is kept back begins; its rate has come down to nearly nothing; all of it is remembered."""
    clock = Clock(schedule=LinearSchedule(warmup=0.05), budget=100.0, phase_ends=(1.0,), reserve=10.0)
    state = clock.state
    clock.phase(0)
    assert 85 < state.elapsed_seconds <= 91
    assert max(clock.rates) > 0.9 and clock.rates[-1] < 0.05
    assert len(state.progress) == state.step and state.progress == sorted(state.progress)
    assert clock.rates == [LinearSchedule(warmup=0.05).compute_factor_at(done, 0) for done in state.progress]


def test_phases_by_the_clock() -> None:
    clock = Clock(first=5.0, budget=100.0, phase_ends=(0.9, 1.0), reserve=10.0)
    state = clock.state
    clock.phase(0)
    assert 70 < state.elapsed_seconds < 90
    clock.phase(1)
    assert 82 < state.elapsed_seconds <= 93 and state.progress == sorted(state.progress) and state.progress[-1] > 0.9


def test_a_clock_that_is_over_at_once() -> None:
    clock = Clock(state=TrainState(elapsed_seconds=1.0), budget=5.0, reserve=10.0)
    clock.phase(0)
    assert clock.state.step <= 2


def test_repeated() -> None:
    """A run that begins with the numbers of another has its rates and phases, whatever its own clock says."""
    first = Clock(first=4.0, budget=60.0, phase_ends=(0.5, 1.0), reserve=3.0)
    state = first.state
    for number in range(2):
        first.phase(number)
    repeat = TrainState(progress=[*state.progress], planned_ends=[state.phases[1], state.step])
    second = Clock(first=900.0, state=repeat, budget=60.0, phase_ends=(0.5, 1.0))
    for number in range(2):
        second.phase(number)
    assert second.rates == first.rates and repeat.phases[:2] == state.phases[:2] and repeat.progress == state.progress


def test_ranks_agree_on_what_a_phase_takes_to_begin() -> None:
    """Their clocks differ by little, and by that little one could take a step that the others do not."""

    class First(Ranks):
        def broadcast_object(self, value: Any) -> Any:
            return 7.0

    clock = Clock(budget=100.0, phase_ends=(0.5, 1.0))
    clock.ranks = First(torch.device("cpu"), rank=1, world=2)
    clock.phase(0)
    assert clock.state.lead == 7.0


@pytest.mark.parametrize("step", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("slower", [1.0, 2.0, 3.0])
def test_what_comes_after_the_last_step_is_kept_for(
    monkeypatch: pytest.MonkeyPatch, step: float, slower: float
) -> None:
    """By a clock of its own: halfway the machine becomes slower, the last evaluation and save with it."""
    now, later_value = 20.0, 12.0
    monkeypatch.setattr("pretune.training.clock.time.monotonic", lambda: now)
    clock = Clock(state=TrainState(elapsed_seconds=now), budget=200.0, phase_ends=(0.9, 1.0), reserve=later_value)
    pace, state = clock.pace, clock.state
    speed: Callable[[], float] = lambda: slower if now > 100.0 else 1.0  # noqa: E731
    for phase in range(2):
        pace.start_phase(state)
        while not pace.is_phase_over(state, phase):
            pace.compute_lr_factor(state)
            state.elapsed_seconds = began = now  # the loop knows when a step began, once it has ended
            now += step * speed()
            state.step += 1
            clock.report(began)
        state.phases.append(state.step)
    now += later_value * speed()
    assert 200.0 * 0.8 < now <= 200.0
    assert state.progress == sorted(state.progress)
