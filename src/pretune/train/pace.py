"""How long a run is, where it stands, and what the learning rate is there: by steps, or by the clock.

A run against the clock must leave time for its last evaluation and save; what it read off the clock at each step is
kept in its state, and a run that is given those numbers repeats it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    history: Sequence[float] = field(default_factory=tuple)  # of an earlier run, to be repeated

    def progress(self, state: State) -> float:
        """The share of the run that is done."""
        if self.steps is not None:
            return min(state.step / self.steps, 1.0)
        if state.step < len(self.history):
            return self.history[state.step]
        if self.history:
            return 1.0
        assert self.budget is not None
        return min(state.elapsed / max(self.budget - self.reserve, 1e-9), 1.0)

    def rate(self, state: State) -> float:
        """The factor of the learning rate of the next step; what the clock said is remembered."""
        if self.steps is not None:
            return self.schedule.factor(state.step, self.steps)
        progress = self.progress(state)
        state.progress[state.step :] = [progress]
        return self.schedule.at(progress, state.step)

    def over(self, state: State, phase: int) -> bool:
        """Whether a phase has come to its end."""
        if self.steps is not None:
            return state.step >= self.last(phase)
        return self.progress(state) >= (1.0 if phase == len(self.ends) - 1 else self.ends[phase])

    def last(self, phase: int) -> int:
        """The step after a phase's last one, in a run of known length."""
        assert self.steps is not None
        return self.steps if phase == len(self.ends) - 1 else round(self.ends[phase] * self.steps)
