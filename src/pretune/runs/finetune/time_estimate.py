"""Expected time of what follows a trial's steps: evaluation on dev and test, further trials, baselines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pretune.evaluation.baselines.table import MAX_TRAIN_EXAMPLES
from pretune.tasks.example import Example

BASELINE_SECONDS: Mapping[str, float] = {"majority": 0.0, "svm": 0.01, "vectors": 0.04, "logistic": 0.03, "bilstm": 1.4}
"""Of a baseline for 1,000 characters, measured on one core of a Neoverse-N1; others take as long as `vectors`."""
FORWARD_SHARE = 1 / 3
"""The share of a training step that a prediction takes, until one has been timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingWork:
    """What a run does after a trial: so many trials like it, and baselines of so many seconds."""

    trials: int = 0
    baselines: float = 0.0


@dataclass(slots=True, kw_only=True)
class TrialOutlook:
    """Time of a trial beside its `steps`: `eval_examples` predictions every so many of them, `final_examples` at the end, and the rest.

    >>> found = TrialOutlook(steps=100, every=50, judged=10, last=30, batch=1, rest=RemainingWork(baselines=5.0))
    >>> found.add_predictions(20, 10.0)  # seconds of predictions: 0.5 each
    >>> found.get_elapsed(), found.estimate_remaining(1.0, 60)  # (10 + 30) x 0.5 and 5
    (10.0, 25.0)
    """

    steps: int
    eval_every: int
    eval_examples: int
    final_examples: int
    batch: int
    remaining_work: RemainingWork = RemainingWork()
    predictions: int = 0
    seconds: float = 0.0

    def add_predictions(self, predictions: int, seconds: float) -> None:
        """Count predictions and their time."""
        self.predictions, self.seconds = self.predictions + predictions, self.seconds + seconds

    def get_elapsed(self) -> float:
        """Seconds of predictions so far."""
        return self.seconds

    def estimate_remaining(self, step_seconds: float, step: int) -> float:
        """Seconds that are still expected beside the steps; `pace` is the mean seconds of a step."""
        each = self.seconds / self.predictions if self.predictions else step_seconds / self.batch * FORWARD_SHARE
        trial = self.steps * step_seconds + self._count_predictions(0) * each
        return self._count_predictions(step) * each + self.remaining_work.trials * trial + self.remaining_work.baselines

    def _count_predictions(self, step: int) -> int:
        """Predictions after a step."""
        return (
            max(math.ceil(self.steps / self.eval_every) - step // self.eval_every, 0) * self.eval_examples
            + self.final_examples
        )


def estimate_baseline_seconds(names: Sequence[str], train: Sequence[Example], test: Sequence[Example]) -> float:
    """Seconds that the baselines of these names take, roughly; those that train the model itself left out."""
    characters = sum(len(one.text) + len(one.pair or "") for one in [*train[:MAX_TRAIN_EXAMPLES], *test])
    return sum(BASELINE_SECONDS.get(name, BASELINE_SECONDS["vectors"]) for name in names) * characters / 1000
