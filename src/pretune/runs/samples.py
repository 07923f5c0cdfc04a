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
from pretune.data.batch_shape import Shape
from pretune.data.stream import Stream
from pretune.runs.sample_text import NEW, READ, WRITERS, Saying, targets
from pretune.training.async_metrics import Report
from pretune.training.clock import Pace
from pretune.training.distributed import Ranks, reshard
from pretune.training.loop import Loop
from pretune.training.optim import averaged
from pretune.training.train_state import State

TEXTS = 3
ROWS = 16
"""Rows of validation text, or of training text where there is none, that these are chosen from."""
BLANKS = 2
"""A text should have so many, where there is one that has."""
FIRST = 1e-12
LOOKS = (1.0, FIRST, 0.4, 0.1, 0.2, 0.7)
"""Shares of a run at which it is looked at, those first that a short run has too."""
COST = 0.01
"""The share of a run that all looks may take; one alone, at its end, may take …"""
ALONE = 0.05
PASS = {"cuda": 0.1, "cpu": 0.02}
"""What it takes to start a pass, in steps: those of a run are compiled and recorded, these are not."""

LATE = 3
"""Steps at most that the clock's progress knows nothing of: the first compiles, and two are not heard of yet."""

Due = Callable[[State], bool]
"""Whether it is time to look, asked once after every step."""


class Samples:
    """A hook that shows what the model makes of a few texts; what goes wrong there does not end the run."""

    def __init__(self, held: Stream, saying: Saying, due: Due, tell: Callable[[int, Sequence[str]], None]) -> None:
        self.held, self.saying, self.due, self.tell = held, saying, due, tell
        self.last = 0
        self._rows: list[Batch] | None = None
        self._wanted = self._off = False

    def __call__(self, loop: Loop, reports: Sequence[Report]) -> None:
        step = loop.state.step
        if self._off:
            return
        if step != self.last:
            self.last, self._wanted = step, self.due(loop.state)
        if self._wanted:
            loop.settle()  # NOTE: the hooks hear of it, this one too: what is wanted next may be done by then
        if not self._wanted:
            return
        self._wanted = False
        begun = time.monotonic()
        try:
            texts = self._ask(loop)
        except Exception as fault:  # whatever it is: the run matters more
            self._off = True
            why = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
            log.warn(f"step {step:,}: no samples from here on, the model could not be asked: {why[:200]}")
            return
        loop.state.evaluating += time.monotonic() - begun
        self.tell(step, texts)

    def _ask(self, loop: Loop) -> list[str]:
        if self._rows is None:
            self._rows = [] if self.saying.prompts else [row.to(loop.ranks.device) for row in chosen(self.held)]
        trainee, taught = loop.trainee, loop.trainee.work
        trainee.eval()
        half = torch.autocast(loop.ranks.device.type, loop.precision, enabled=loop.precision is not None)
        try:
            trainee.work = self.saying
            with (
                averaged(loop.optimizer),
                torch.no_grad(),
                half,
                torch.compiler.set_stance("force_eager"),
            ):  # each length would be compiled anew
                texts: list[str] = trainee(self._rows)
        finally:
            trainee.work = taught
            trainee.train()
            reshard(trainee)
        return texts


def chosen(held: Stream) -> list[Batch]:
    """A few rows of the first batch of a split, whose first sequence has some targets, or any text at all."""
    rows = held.shape.rows
    found: list[Batch] = []
    for part in range(min(rows, ROWS)):
        row = held.batch(0, part=part, parts=rows)
        if not row.spans():  # there may be little of it, and the rest is empty
            break
        found.append(row)
        if sum(_asked(row) for row in found) == TEXTS:
            break
    return sorted(found, key=lambda row: not _asked(row))[:TEXTS]


def _asked(row: Batch) -> bool:
    return len(targets(row)[0]) >= BLANKS


def due(every: int | None, pace: Pace, state: State, cost: float) -> Due:
    """When a run that is at a state is looked at: every so many steps, never (0), or a few times at this cost."""
    if every is None:
        return NowAndThen(pace.progress, cost, steps=pace.steps, before=pace.progress(state))
    return lambda state: every > 0 and state.step % every == 0


@dataclass(slots=True, kw_only=True)
class NowAndThen:
    """At some shares of a run, as many as its length allows: a look costs so many steps.

    It follows from the run's progress alone, on which all ranks agree; in a run of known length, from the step.
    """

    progress: Callable[[State], float] = field(kw_only=False)
    cost: float = field(kw_only=False)
    steps: int | None = None  # of the run; None: the clock decides
    before: float = 0.0  # progress at the step before

    def __call__(self, state: State) -> bool:
        before, now = self.before, max(self.before, self.progress(state))
        self.before = now
        crossed = [place for place, share in enumerate(LOOKS) if before < share <= now]
        if not crossed:
            return False
        return crossed[0] < looks(self.steps or max(state.step - LATE, 1) / now, self.cost)


def looks(steps: float, cost: float) -> int:
    """How many looks a run of so many steps can afford.

    >>> looks(1000, 0.25), looks(50, 0.25), looks(6, 0.25), looks(2, 0.25)
    (6, 2, 1, 0)
    """
    return min(int(COST * steps / cost), len(LOOKS)) or int(ALONE * steps >= cost)


def price(shape: Shape, kind: str, tokens: int, ranks: Ranks) -> float:
    """What a look costs by what is read for it, in steps of so many tokens, each read three times: back and forth.

    All ranks look, each at everything: weights may be sharded.
    """
    if kind in WRITERS:
        passes, read = NEW, NEW * TEXTS * (READ + NEW // 2)
    else:
        passes, read = TEXTS, TEXTS * (shape.length + (shape.source or 0))
    return passes * PASS["cuda" if ranks.device.type == "cuda" else "cpu"] + read * ranks.world / (3 * tokens)
