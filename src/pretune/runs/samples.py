"""Samples during training: the same few texts each time, continued or with masked words filled in.

Samples take about a hundredth of the training time at most, or come every `train.samples_every` steps. They draw no
random numbers and change no weight, so training stays bit-equal.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from pretune.core import log
from pretune.core.types import Batch
from pretune.data.plan import BatchShape
from pretune.data.stream import BatchStream
from pretune.runs.sample_text import GENERATIVE_SHAPES, NEW_TOKENS, PROMPT_TOKENS, SampleObjective, find_targets
from pretune.training.clock import TrainingClock
from pretune.training.distributed import Ranks, reshard
from pretune.training.loop import Loop
from pretune.training.optim import use_averages
from pretune.training.step import StepMetrics, TrainState

SAMPLE_TEXTS = 3
CANDIDATE_ROWS = 16
"""Rows of the validation split, or else the training split, that the texts are selected from."""
MIN_BLANKS = 2
"""Preferred minimum number of targets of a text."""
FIRST_STEP_SHARE = 1e-12
SAMPLE_SHARES = (1.0, FIRST_STEP_SHARE, 0.4, 0.1, 0.2, 0.7)
"""Shares of a run at which samples are taken; short runs use the first ones."""
MAX_COST_SHARE = 0.01
"""Maximum time share of all samples; a single one, at the end, may take `MAX_SINGLE_COST_SHARE`."""
MAX_SINGLE_COST_SHARE = 0.05
PASS_COST = {"cuda": 0.1, "cpu": 0.02}
"""Cost of a forward pass in steps: those of a run are compiled and recorded, these are not."""

CLOCK_DELAY = 3
"""Steps that the clock's progress may lag: the first compiles, and two are in flight."""

SampleTrigger = Callable[[TrainState], bool]
"""Predicate called once after every step: True to take samples."""


class SampleHook:
    """Hook that takes samples; an error disables it and does not end the run."""

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
            loop.flush()  # NOTE: flush runs the hooks, this one too: the samples may be taken by then
        if not self._is_due:
            return
        self._is_due = False
        start = time.monotonic()
        try:
            texts = self._sample(loop)
        except Exception as fault:  # a failure must not end the run
            self._is_disabled = True
            reason = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
            log.warn(f"step {step:,}: samples disabled after an error: {reason[:200]}")
            return
        loop.state.evaluating += time.monotonic() - start
        self.on_samples(step, texts)

    def _sample(self, loop: Loop) -> list[str]:
        if self._rows is None:
            self._rows = (
                [] if self.objective.prompts else [row.to(loop.ranks.device) for row in select_rows(self.stream)]
            )
        loss_module, training_objective = loop.module, loop.module.objective
        loss_module.eval()
        half = torch.autocast(loop.ranks.device.type, loop.precision, enabled=loop.precision is not None)
        try:
            loss_module.objective = self.objective
            with (
                use_averages(loop.optimizer),
                torch.no_grad(),
                half,
                torch.compiler.set_stance("force_eager"),
            ):  # each length would be compiled again
                texts: list[str] = loss_module(self._rows)
        finally:
            loss_module.objective = training_objective
            loss_module.train()
            reshard(loss_module)
        return texts


def select_rows(stream: BatchStream) -> list[Batch]:
    """Return a few rows of a split's first batch, preferably with several targets in the first sequence."""
    rows = stream.shape.rows
    candidates: list[Batch] = []
    for part in range(min(rows, CANDIDATE_ROWS)):
        row = stream.batch(0, part=part, parts=rows)
        if not row.list_spans():  # small splits leave rows empty
            break
        candidates.append(row)
        if sum(_has_blanks(row) for row in candidates) == SAMPLE_TEXTS:
            break
    return sorted(candidates, key=lambda row: not _has_blanks(row))[:SAMPLE_TEXTS]


def _has_blanks(row: Batch) -> bool:
    return len(find_targets(row)[0]) >= MIN_BLANKS


def build_trigger(every: int | None, pace: TrainingClock, state: TrainState, cost: float) -> SampleTrigger:
    """Return the trigger: every `every` steps, never (0), or at a few shares of the run (None)."""
    if every is None:
        return ProgressTrigger(
            pace.compute_progress, cost, steps=pace.steps, last_progress=pace.compute_progress(state)
        )
    return lambda state: every > 0 and state.step % every == 0


@dataclass(slots=True, kw_only=True)
class ProgressTrigger:
    """Trigger at some shares of a run, as many as its length allows at this cost in steps.

    It depends only on the run's progress, on which all ranks agree; in a run of known length, on the step.
    """

    progress: Callable[[TrainState], float] = field(kw_only=False)
    cost: float = field(kw_only=False)
    steps: int | None = None  # of the run; None: the clock decides
    last_progress: float = 0.0  # at the previous step

    def __call__(self, state: TrainState) -> bool:
        previous, current = self.last_progress, max(self.last_progress, self.progress(state))
        self.last_progress = current
        reached_shares = [place for place, share in enumerate(SAMPLE_SHARES) if previous < share <= current]
        if not reached_shares:
            return False
        return reached_shares[0] < count_samples(self.steps or max(state.step - CLOCK_DELAY, 1) / current, self.cost)


def count_samples(steps: float, cost: float) -> int:
    """Return how many samples a run of this length can afford.

    >>> count_samples(1000, 0.25), count_samples(50, 0.25), count_samples(6, 0.25), count_samples(2, 0.25)
    (6, 2, 1, 0)
    """
    return min(int(MAX_COST_SHARE * steps / cost), len(SAMPLE_SHARES)) or int(MAX_SINGLE_COST_SHARE * steps >= cost)


def estimate_sample_cost(shape: BatchShape, kind: str, tokens: int, ranks: Ranks) -> float:
    """Estimate the cost of samples in training steps of `tokens` tokens, which take three passes each.

    All ranks compute all samples, since weights may be sharded.
    """
    if kind in GENERATIVE_SHAPES:
        passes, read = NEW_TOKENS, NEW_TOKENS * SAMPLE_TEXTS * (PROMPT_TOKENS + NEW_TOKENS // 2)
    else:
        passes, read = SAMPLE_TEXTS, SAMPLE_TEXTS * (shape.length + (shape.source or 0))
    return passes * PASS_COST["cuda" if ranks.device.type == "cuda" else "cpu"] + read * ranks.world / (3 * tokens)
