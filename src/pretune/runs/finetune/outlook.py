"""Outlook of a fine-tuning run: the time that evaluation, further trials and baselines will take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pretune.evaluation.baselines import MAX_TRAIN_EXAMPLES
from pretune.tasks.example import Example

FORWARD_SHARE = 1 / 3
"""Cost of a prediction relative to a training step, until one has been timed."""
BASELINE_SECONDS = {"majority": 0.0, "svm": 0.01, "vectors": 0.04, "logistic": 0.03, "bilstm": 1.4}
"""Seconds of a baseline per 1,000 characters, measured on one core of a Neoverse-N1; others take as long as `vectors`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingWork:
    """Work of a run after a trial: further trials like it, and seconds of baselines."""

    trials: int = 0
    baselines: float = 0.0


@dataclass(slots=True, kw_only=True)
class TrialOutlook:
    """Time of a trial besides its `steps`: `eval_examples` predictions every `eval_every` steps, `final_examples` at
    the end.

    >>> outlook = TrialOutlook(steps=100, eval_every=50, eval_examples=10, final_examples=30, batch=1,
    ...                        remaining_work=RemainingWork(baselines=5.0))
    >>> outlook.add_predictions(20, 10.0)  # seconds of predictions: 0.5 each
    >>> outlook.get_elapsed(), outlook.estimate_remaining(1.0, 60)  # (10 + 30) x 0.5 and 5
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
        """Return the seconds of predictions so far."""
        return self.seconds

    def estimate_remaining(self, step_seconds: float, step: int) -> float:
        """Return the expected seconds besides the steps; `step_seconds` is the mean duration of a step."""
        prediction_seconds = (
            self.seconds / self.predictions if self.predictions else step_seconds / self.batch * FORWARD_SHARE
        )
        trial = self.steps * step_seconds + self._count_predictions(0) * prediction_seconds
        return (
            self._count_predictions(step) * prediction_seconds
            + self.remaining_work.trials * trial
            + self.remaining_work.baselines
        )

    def _count_predictions(self, step: int) -> int:
        """Return the number of predictions after a step."""
        return (
            max(math.ceil(self.steps / self.eval_every) - step // self.eval_every, 0) * self.eval_examples
            + self.final_examples
        )


def estimate_baseline_seconds(names: Sequence[str], train: Sequence[Example], test: Sequence[Example]) -> float:
    """Estimate the seconds of these baselines, without those that train the model itself."""
    characters = sum(len(example.text) + len(example.pair or "") for example in [*train[:MAX_TRAIN_EXAMPLES], *test])
    return sum(BASELINE_SECONDS.get(name, BASELINE_SECONDS["vectors"]) for name in names) * characters / 1000
