"""How long a run is, where it stands, and what the learning rate is there: by steps, or by the clock.

A run against the clock must leave time for its last evaluation and save: `reserve` is what they took before the first
step, and where steps become slower, because a machine has other work, it grows with them. The first steps of a phase
compile the model: progress stands still until they are done, and then spreads over the time that is left. What was read
off the clock at each step is kept in the state, and a run that begins with those numbers (`TrainState.planned`) repeats it.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from pretune.training.async_metrics import StepMetrics
from pretune.training.loop import Loop
from pretune.training.schedules import Schedule
from pretune.training.train_state import TrainState

IN_FLIGHT_STEPS = 2.0
"""Steps that the clock knows nothing of when it is asked: the one that has just ended, and the one that it allows."""
RECENT_STEPS = 5
"""Steps whose median is the time of a step: single ones are longer, with an evaluation or a save behind them."""


@dataclass(slots=True, kw_only=True)
class TrainingClock:
    """Either `steps` or `budget` (seconds) is given. Phases end at shares of the run, the last at 1."""

    schedule: Schedule
    steps: int | None = None
    budget: float | None = None
    phase_ends: tuple[float, ...] = (1.0,)
    reserve: float = 0.0  # seconds that come after the last step, at the speed of the first steps
    tail_steps: float = (
        IN_FLIGHT_STEPS  # steps that are worth the rest of what comes after the budget's last look at the clock
    )
    _phase_start: tuple[int, float] = (0, 0.0)  # the first step of the phase in this process, and when it began
    _newest_start: tuple[int, float] = (-1, 0.0)  # the newest step that is known of, and when it began
    _recent_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))  # seconds of steps
    _initial_seconds: float | None = None  # … of the first ones of the phase
    _initial_slowdown: float = 1.0  # than before the first step, when the phase began

    def compute_progress(self, state: TrainState) -> float:
        """The share of the run that is done."""
        if self.steps is not None:
            return min(state.step / self.steps, 1.0)
        if state.planned:
            return state.progress[state.step] if state.step < state.planned[-1] else 1.0
        assert self.budget is not None
        done, at = state.anchor
        if at < 0:  # the phase has just begun
            return done
        later = len(self.phase_ends) - len(state.phases)  # phases, which will have to be compiled too
        left = self.budget - self.reserved_seconds - later * state.lead - at
        found = min(done + (1 - done) * (state.elapsed - at) / max(left, 1e-9), 1.0) if left > 0 else 1.0
        return max(found, state.progress[-1]) if state.progress else found  # NOTE: what is kept back may shrink

    @property
    def reserved_seconds(self) -> float:
        """Seconds of the budget that are kept for what comes after the last step, as fast as the run is now."""
        return self.reserve * self._compute_slowdown() + self.tail_steps * (
            median(self._recent_seconds) if self._recent_seconds else 0.0
        )

    def _compute_slowdown(self) -> float:
        return self._initial_slowdown * (
            max(median(self._recent_seconds) / self._initial_seconds, 1.0) if self._initial_seconds else 1.0
        )

    def start_phase(self, state: TrainState) -> None:
        """A phase begins, or a process that takes it up."""
        if self.budget is not None:
            state.anchor = (self.compute_progress(state) if state.anchor[1] >= 0 else state.anchor[0], -1.0)
            self._phase_start = (state.step, time.monotonic())
            self._initial_slowdown, self._initial_seconds, self._newest_start = (
                self._compute_slowdown(),
                None,
                (-1, 0.0),
            )
            self._recent_seconds.clear()  # of other lengths

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        """A hook: the second step of a phase has begun, so its first is over."""
        for report in metrics:
            if self.budget is not None and loop.state.anchor[1] < 0 and report.step > self._phase_start[0]:
                loop.state.anchor = (loop.state.anchor[0], report.elapsed)
                took = loop.ranks.broadcast_object(
                    loop.start_time + report.elapsed - self._phase_start[1]
                )  # all end at the same step
                loop.state.lead = max(loop.state.lead, took)
            elif report.step == self._newest_start[0] + 1 and report.step > self._phase_start[0] + 1:
                self._recent_seconds.append(report.elapsed - self._newest_start[1])
                if self._initial_seconds is None and len(self._recent_seconds) == RECENT_STEPS:
                    self._initial_seconds = median(self._recent_seconds)
            self._newest_start = (report.step, report.elapsed)

    def compute_lr_factor(self, state: TrainState) -> float:
        """The factor of the learning rate of the next step; what the clock said is remembered."""
        if self.steps is not None:
            return self.schedule.compute_factor(state.step, self.steps)
        progress = self.compute_progress(state)
        if not state.planned:
            state.progress[state.step :] = [progress]
        return self.schedule.compute_factor_at(progress, state.step)

    def is_phase_over(self, state: TrainState, phase: int) -> bool:
        """Whether a phase has come to its end."""
        if self.steps is not None:
            return state.step >= self.find_end_step(phase)
        if state.planned:
            return state.step >= state.planned[phase]
        return self.compute_progress(state) >= (1.0 if phase == len(self.phase_ends) - 1 else self.phase_ends[phase])

    def find_end_step(self, phase: int) -> int:
        """The step after a phase's last one, in a run of known length."""
        assert self.steps is not None
        return self.steps if phase == len(self.phase_ends) - 1 else round(self.phase_ends[phase] * self.steps)
