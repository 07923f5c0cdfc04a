"""Length of a run, its progress and its learning rate factor: by steps, or by wall-clock time.

A run with a time budget must leave time for its last evaluation and checkpoint: `reserve` is what they took before the
first step, scaled up if steps become slower because the machine is shared. The first steps of a phase compile the
model: progress pauses during them, and then spreads over the remaining time. The progress of every step is kept
in the state, and a run that starts with these numbers (`TrainState.planned_ends`) repeats it exactly.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from pretune.training.config import Schedule
from pretune.training.loop import Loop
from pretune.training.step import StepMetrics, TrainState

IN_FLIGHT_STEPS = 2.0
"""Steps not yet measured when the clock is read: the one that just ended, and the one about to start."""
RECENT_STEPS = 5
"""Window of the median step time; single steps may include an evaluation or a checkpoint."""
DISK_BYTES_PER_SECOND = 200e6
"""Assumed disk throughput, for the time reserved at the end of a budget."""
FINAL_SAVES = 3.0
"""Time of the end of a run in multiples of the first save: a checkpoint, checks of older ones, the model."""
EXIT_SECONDS, MAX_SLOWDOWN = 1.0, 3.0
"""Seconds for the last log lines and process exit, and the factor by which a busy machine may be slower."""


@dataclass(slots=True, kw_only=True)
class TrainingClock:
    """Clock of a run. Set either `steps` or `budget` (seconds). Phases end at fractions of the run, the last at 1."""

    schedule: Schedule
    steps: int | None = None
    budget: float | None = None
    phase_ends: tuple[float, ...] = (1.0,)
    reserve: float = 0.0  # seconds after the last step, at the speed of the first steps
    tail_steps: float = IN_FLIGHT_STEPS  # steps to reserve for the time after the clock is last read
    _phase_start: tuple[int, float] = (0, 0.0)  # first step of the phase in this process, and its start time
    _newest_start: tuple[int, float] = (-1, 0.0)  # newest measured step, and its start time
    _recent_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))  # per step
    _initial_seconds: float | None = None  # per step, at the start of the phase
    _initial_slowdown: float = 1.0  # of the phase's start, relative to the time before the first step

    def compute_progress(self, state: TrainState) -> float:
        """Return the completed fraction of the run."""
        if self.steps is not None:
            return min(state.step / self.steps, 1.0)
        if state.planned_ends:
            return state.progress[state.step] if state.step < state.planned_ends[-1] else 1.0
        assert self.budget is not None
        initial_progress, start_time = state.anchor
        if start_time < 0:  # the phase has just started
            return initial_progress
        remaining_phases = len(self.phase_ends) - len(state.phases)  # each will be compiled too
        remaining_seconds = self.budget - self.reserved_seconds - remaining_phases * state.lead - start_time
        progress = 1.0
        if remaining_seconds > 0:
            added_progress = (1 - initial_progress) * (state.elapsed_seconds - start_time) / remaining_seconds
            progress = min(initial_progress + added_progress, 1.0)
        return max(progress, state.progress[-1]) if state.progress else progress  # NOTE: the reserve may shrink

    @property
    def reserved_seconds(self) -> float:
        """Seconds of the budget reserved for the end of the run, at its current speed."""
        step_seconds = median(self._recent_seconds) if self._recent_seconds else 0.0
        return self.reserve * self._compute_slowdown() + self.tail_steps * step_seconds

    def _compute_slowdown(self) -> float:
        slowdown = median(self._recent_seconds) / self._initial_seconds if self._initial_seconds else 1.0
        return self._initial_slowdown * max(slowdown, 1.0)

    def start_phase(self, state: TrainState) -> None:
        """Start or resume a phase."""
        if self.budget is not None:
            state.anchor = (self.compute_progress(state) if state.anchor[1] >= 0 else state.anchor[0], -1.0)
            self._phase_start = (state.step, time.monotonic())
            self._initial_slowdown = self._compute_slowdown()
            self._initial_seconds, self._newest_start = None, (-1, 0.0)
            self._recent_seconds.clear()  # sequence lengths differ between phases

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        """Measure step times (a hook). The first step of a phase is over when the second has started."""
        for step_metrics in metrics:
            if self.budget is not None and loop.state.anchor[1] < 0 and step_metrics.step > self._phase_start[0]:
                loop.state.anchor = (loop.state.anchor[0], step_metrics.elapsed_seconds)
                seconds = loop.start_time + step_metrics.elapsed_seconds - self._phase_start[1]
                # All ranks must end at the same step.
                loop.state.lead = max(loop.state.lead, loop.ranks.broadcast_object(seconds))
            elif step_metrics.step == self._newest_start[0] + 1 and step_metrics.step > self._phase_start[0] + 1:
                self._recent_seconds.append(step_metrics.elapsed_seconds - self._newest_start[1])
                if self._initial_seconds is None and len(self._recent_seconds) == RECENT_STEPS:
                    self._initial_seconds = median(self._recent_seconds)
            self._newest_start = (step_metrics.step, step_metrics.elapsed_seconds)

    def compute_lr_factor(self, state: TrainState) -> float:
        """Return the learning rate factor of the next step; in a run with a budget, record its progress."""
        if self.steps is not None:
            return self.schedule.compute_factor(state.step, self.steps)
        progress = self.compute_progress(state)
        if not state.planned_ends:
            state.progress[state.step :] = [progress]
        return self.schedule.compute_factor_at(progress, state.step)

    def is_phase_over(self, state: TrainState, phase: int) -> bool:
        """Return True if a phase has ended."""
        if self.steps is not None:
            return state.step >= self.find_end_step(phase)
        if state.planned_ends:
            return state.step >= state.planned_ends[phase]
        return self.compute_progress(state) >= (1.0 if phase == len(self.phase_ends) - 1 else self.phase_ends[phase])

    def find_end_step(self, phase: int) -> int:
        """Return the step after the last one of a phase, in a run of fixed length."""
        assert self.steps is not None
        return self.steps if phase == len(self.phase_ends) - 1 else round(self.phase_ends[phase] * self.steps)


def estimate_reserve(*, parameters: int, startup_seconds: float, save_seconds: float, eval_seconds: float) -> float:
    """Estimate the seconds from the last step to process exit: evaluation, checkpoint, model, exit.

    Wall-clock over CPU time of the startup tells how busy the machine is.
    """
    busy = startup_seconds / max(time.process_time(), 1e-3)
    exit_seconds = EXIT_SECONDS * min(max(busy, 1.0), MAX_SLOWDOWN)
    write_seconds = max(FINAL_SAVES * save_seconds, 5 * 4 * parameters / DISK_BYTES_PER_SECOND)
    return exit_seconds + write_seconds + 1.25 * eval_seconds
