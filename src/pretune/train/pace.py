"""How long a run is, where it stands, and what the learning rate is there: by steps, or by the clock.

A run against the clock must leave time for its last evaluation and save. The first steps of a phase compile the model:
progress stands still until they are done, and then spreads over the time that is left. What was read off the clock at
each step is kept in the state, and a run that begins with those numbers (`State.planned`) repeats it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pretune.train.late import Report
from pretune.train.loop import Loop
from pretune.train.schedules import Schedule
from pretune.train.state import State


@dataclass(slots=True, kw_only=True)
class Pace:
    """Either `steps` or `budget` (seconds) is given. Phases end at shares of the run, the last at 1."""

    schedule: Schedule
    steps: int | None = None
    budget: float | None = None
    ends: tuple[float, ...] = (1.0,)
    reserve: float = 0.0  # seconds of the budget that come after the last step
    _entered: tuple[int, float] = (0, 0.0)  # the first step of the phase in this process, and when it began

    def progress(self, state: State) -> float:
        """The share of the run that is done."""
        if self.steps is not None:
            return min(state.step / self.steps, 1.0)
        if state.planned:
            return state.progress[state.step] if state.step < state.planned[-1] else 1.0
        assert self.budget is not None
        done, at = state.anchor
        if at < 0:  # the phase has just begun
            return done
        later = len(self.ends) - len(state.phases)  # phases, which will have to be compiled too
        left = self.budget - self.reserve - later * state.lead - at
        return min(done + (1 - done) * (state.elapsed - at) / max(left, 1e-9), 1.0) if left > 0 else 1.0

    def enter(self, state: State) -> None:
        """A phase begins, or a process that takes it up."""
        if self.budget is not None:
            state.anchor = (self.progress(state) if state.anchor[1] >= 0 else state.anchor[0], -1.0)
            self._entered = (state.step, time.monotonic())

    def __call__(self, loop: Loop, reports: Sequence[Report]) -> None:
        """A hook: the second step of a phase has begun, so its first is over."""
        for report in reports:
            if self.budget is not None and loop.state.anchor[1] < 0 and report.step > self._entered[0]:
                loop.state.anchor = (loop.state.anchor[0], report.elapsed)
                took = loop.ranks.share(loop.begun + report.elapsed - self._entered[1])  # all end at the same step
                loop.state.lead = max(loop.state.lead, took)

    def rate(self, state: State) -> float:
        """The factor of the learning rate of the next step; what the clock said is remembered."""
        if self.steps is not None:
            return self.schedule.factor(state.step, self.steps)
        progress = self.progress(state)
        if not state.planned:
            state.progress[state.step :] = [progress]
        return self.schedule.at(progress, state.step)

    def over(self, state: State, phase: int) -> bool:
        """Whether a phase has come to its end."""
        if self.steps is not None:
            return state.step >= self.last(phase)
        if state.planned:
            return state.step >= state.planned[phase]
        return self.progress(state) >= (1.0 if phase == len(self.ends) - 1 else self.ends[phase])

    def last(self, phase: int) -> int:
        """The step after a phase's last one, in a run of known length."""
        assert self.steps is not None
        return self.steps if phase == len(self.ends) - 1 else round(self.ends[phase] * self.steps)
