"""Expected time of what follows a trial's steps: evaluation on dev and test, further trials, baselines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pretune.evaluation.baselines.table import MOST
from pretune.tasks.example import Example

SECONDS: Mapping[str, float] = {"majority": 0.0, "svm": 0.01, "vectors": 0.04, "logistic": 0.03, "bilstm": 1.4}
"""Of a baseline for 1,000 characters, measured on one core of a Neoverse-N1; others take as long as `vectors`."""
FORWARD = 1 / 3
"""The share of a training step that a prediction takes, until one has been timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What a run does after a trial: so many trials like it, and baselines of so many seconds."""

    trials: int = 0
    baselines: float = 0.0


@dataclass(slots=True, kw_only=True)
class TrialOutlook:
    """Time of a trial beside its `steps`: `judged` predictions every so many of them, `last` at the end, and the rest.

    >>> found = TrialOutlook(steps=100, every=50, judged=10, last=30, batch=1, rest=Rest(baselines=5.0))
    >>> found.add(20, 10.0)  # seconds of predictions: 0.5 each
    >>> found.spent(), found.ahead(1.0, 60)  # (10 + 30) x 0.5 and 5
    (10.0, 25.0)
    """

    steps: int
    every: int
    judged: int
    last: int
    batch: int
    rest: Rest = Rest()
    predictions: int = 0
    seconds: float = 0.0

    def add(self, predictions: int, seconds: float) -> None:
        """Count predictions and their time."""
        self.predictions, self.seconds = self.predictions + predictions, self.seconds + seconds

    def spent(self) -> float:
        """Seconds of predictions so far."""
        return self.seconds

    def ahead(self, pace: float, step: int) -> float:
        """Seconds that are still expected beside the steps; `pace` is the mean seconds of a step."""
        each = self.seconds / self.predictions if self.predictions else pace / self.batch * FORWARD
        trial = self.steps * pace + self._count(0) * each
        return self._count(step) * each + self.rest.trials * trial + self.rest.baselines

    def _count(self, step: int) -> int:
        """Predictions after a step."""
        return max(math.ceil(self.steps / self.every) - step // self.every, 0) * self.judged + self.last


def baseline_seconds(names: Sequence[str], train: Sequence[Example], judged: Sequence[Example]) -> float:
    """Seconds that the baselines of these names take, roughly; those that train the model itself left out."""
    characters = sum(len(one.text) + len(one.pair or "") for one in [*train[:MOST], *judged])
    return sum(SECONDS.get(name, SECONDS["vectors"]) for name in names) * characters / 1000
