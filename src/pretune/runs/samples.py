"""What a model says while it learns: a few texts, the same at every look, gone on with or filled in.

A run is looked at now and then, for about a hundredth of its time at most, or every `train.samples_every` steps.
Nothing is drawn and no weight is touched, so that what is learnt stays the same, bit for bit.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from pretune.core import log
from pretune.core.types import Batch
from pretune.data.batch_shape import BatchShape
from pretune.data.stream import BatchStream
from pretune.runs.sample_text import GENERATIVE_SHAPES, NEW_TOKENS, PROMPT_TOKENS, SampleObjective, find_targets
from pretune.training.async_metrics import StepMetrics
from pretune.training.clock import TrainingClock
from pretune.training.distributed import Ranks, reshard
from pretune.training.loop import Loop
from pretune.training.optim import use_averages
from pretune.training.train_state import TrainState

SAMPLE_TEXTS = 3
CANDIDATE_ROWS = 16
"""Rows of validation text, or of training text where there is none, that these are chosen from."""
MIN_BLANKS = 2
"""A text should have so many, where there is one that has."""
FIRST_STEP_SHARE = 1e-12
SAMPLE_SHARES = (1.0, FIRST_STEP_SHARE, 0.4, 0.1, 0.2, 0.7)
"""Shares of a run at which it is looked at, those first that a short run has too."""
MAX_COST_SHARE = 0.01
"""The share of a run that all looks may take; one alone, at its end, may take …"""
MAX_SINGLE_COST_SHARE = 0.05
PASS_COST = {"cuda": 0.1, "cpu": 0.02}
"""What it takes to start a pass, in steps: those of a run are compiled and recorded, these are not."""

CLOCK_DELAY = 3
"""Steps at most that the clock's progress knows nothing of: the first compiles, and two are not heard of yet."""

SampleTrigger = Callable[[TrainState], bool]
"""Whether it is time to look, asked once after every step."""


class SampleHook:
    """A hook that shows what the model makes of a few texts; what goes wrong there does not end the run."""

    def __init__(
        self,
        stream: BatchStream,
        objective: SampleObjective,
        trigger: SampleTrigger,
        on_samples: Callable[[int, Sequence[str]], None],
    ) -> None:
        self.stream, self.objective, self.trigger, self.on_samples = stream, objective, trigger, on_samples
        self.last_step = 0
        self._rows: list[Batch] | None = None
        self._is_due = self._is_disabled = False

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        step = loop.state.step
        if self._is_disabled:
            return
        if step != self.last_step:
            self.last_step, self._is_due = step, self.trigger(loop.state)
        if self._is_due:
            loop.flush()  # NOTE: the hooks hear of it, this one too: what is wanted next may be done by then
        if not self._is_due:
            return
        self._is_due = False
        begun = time.monotonic()
        try:
            texts = self._sample(loop)
        except Exception as fault:  # whatever it is: the run matters more
            self._is_disabled = True
            why = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
            log.warn(f"step {step:,}: no samples from here on, the model could not be asked: {why[:200]}")
            return
        loop.state.evaluating += time.monotonic() - begun
        self.on_samples(step, texts)

    def _sample(self, loop: Loop) -> list[str]:
        if self._rows is None:
            self._rows = (
                [] if self.objective.prompts else [row.to(loop.ranks.device) for row in select_rows(self.stream)]
            )
        trainee, taught = loop.module, loop.module.objective
        trainee.eval()
        half = torch.autocast(loop.ranks.device.type, loop.precision, enabled=loop.precision is not None)
        try:
            trainee.objective = self.objective
            with (
                use_averages(loop.optimizer),
                torch.no_grad(),
                half,
                torch.compiler.set_stance("force_eager"),
            ):  # each length would be compiled anew
                texts: list[str] = trainee(self._rows)
        finally:
            trainee.objective = taught
            trainee.train()
            reshard(trainee)
        return texts


def select_rows(stream: BatchStream) -> list[Batch]:
    """A few rows of the first batch of a split, whose first sequence has some targets, or any text at all."""
    rows = stream.shape.rows
    found: list[Batch] = []
    for part in range(min(rows, CANDIDATE_ROWS)):
        row = stream.batch(0, part=part, parts=rows)
        if not row.list_spans():  # there may be little of it, and the rest is empty
            break
        found.append(row)
        if sum(_has_blanks(row) for row in found) == SAMPLE_TEXTS:
            break
    return sorted(found, key=lambda row: not _has_blanks(row))[:SAMPLE_TEXTS]


def _has_blanks(row: Batch) -> bool:
    return len(find_targets(row)[0]) >= MIN_BLANKS


def build_trigger(every: int | None, pace: TrainingClock, state: TrainState, cost: float) -> SampleTrigger:
    """When a run that is at a state is looked at: every so many steps, never (0), or a few times at this cost."""
    if every is None:
        return ProgressTrigger(
            pace.compute_progress, cost, steps=pace.steps, last_progress=pace.compute_progress(state)
        )
    return lambda state: every > 0 and state.step % every == 0


@dataclass(slots=True, kw_only=True)
class ProgressTrigger:
    """At some shares of a run, as many as its length allows: a look costs so many steps.

    It follows from the run's progress alone, on which all ranks agree; in a run of known length, from the step.
    """

    progress: Callable[[TrainState], float] = field(kw_only=False)
    cost: float = field(kw_only=False)
    steps: int | None = None  # of the run; None: the clock decides
    last_progress: float = 0.0  # progress at the step before

    def __call__(self, state: TrainState) -> bool:
        before, now = self.last_progress, max(self.last_progress, self.progress(state))
        self.last_progress = now
        crossed = [place for place, share in enumerate(SAMPLE_SHARES) if before < share <= now]
        if not crossed:
            return False
        return crossed[0] < count_samples(self.steps or max(state.step - CLOCK_DELAY, 1) / now, self.cost)


def count_samples(steps: float, cost: float) -> int:
    """How many looks a run of so many steps can afford.

    >>> count_samples(1000, 0.25), count_samples(50, 0.25), count_samples(6, 0.25), count_samples(2, 0.25)
    (6, 2, 1, 0)
    """
    return min(int(MAX_COST_SHARE * steps / cost), len(SAMPLE_SHARES)) or int(MAX_SINGLE_COST_SHARE * steps >= cost)


def estimate_sample_cost(shape: BatchShape, kind: str, tokens: int, ranks: Ranks) -> float:
    """What a look costs by what is read for it, in steps of so many tokens, each read three times: back and forth.

    All ranks look, each at everything: weights may be sharded.
    """
    if kind in GENERATIVE_SHAPES:
        passes, read = NEW_TOKENS, NEW_TOKENS * SAMPLE_TEXTS * (PROMPT_TOKENS + NEW_TOKENS // 2)
    else:
        passes, read = SAMPLE_TEXTS, SAMPLE_TEXTS * (shape.length + (shape.source or 0))
    return passes * PASS_COST["cuda" if ranks.device.type == "cuda" else "cpu"] + read * ranks.world / (3 * tokens)
