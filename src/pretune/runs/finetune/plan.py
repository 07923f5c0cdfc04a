"""Plan of a fine-tuning run: trials by learning rate, seed and training set size, their length, and the time left."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.evaluation.baselines.run import MAX_TRAIN_EXAMPLES
from pretune.runs.finetune.config import FinetuneConfig, FinetuneTrainConfig
from pretune.tasks.example import Example


@spec(has_kind=False)
class SweepPlan:
    """Trials of a run: rates are compared on dev with the first seed and all labels; other trials use the best rate."""

    rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0,)
    train_examples: tuple[int | None, ...] = (None,)  # training examples; None: all
    baselines: tuple[str, ...] = ()
    forgetting: str | None = None  # prepared data for the pre-training loss before and after
    vectors: str | None = None  # word vectors for the baseline `vectors`

    def __post_init__(self) -> None:
        for name, values in (
            ("learning rates", self.rates),
            ("seeds", self.seeds),
            ("numbers of training examples", self.train_examples),
        ):
            if not values or len(set(values)) < len(values):
                raise UsageError(f"{name} {', '.join(map(str, values))}: need at least one, without duplicates")

    @property
    def is_single(self) -> bool:
        """True for a single trial, which is then the run itself."""
        return len(self.rates) == len(self.seeds) == len(self.train_examples) == 1

    @property
    def trial_count(self) -> int:
        """Number of trials."""
        return len(self.rates) - 1 + len(self.seeds) * len(self.train_examples)

    @property
    def max_train_examples(self) -> int | None:
        """Largest training set size: that of the result."""
        return None if None in self.train_examples else max(count for count in self.train_examples if count is not None)

    def format_name(self, tuning: FinetuneConfig) -> str:
        """Return the name of a trial."""
        return f"labels-{tuning.task.train_examples or 'all'}-lr-{tuning.train.lr:g}-seed-{tuning.train.seed}"

    def list_rate_trials(self, tuning: FinetuneConfig) -> Iterator[FinetuneConfig]:
        """Yield the trials that select a learning rate; with one rate, its first trial."""
        for rate in self.rates:
            yield tuning.replace(
                {"train.lr": rate, "train.seed": self.seeds[0], "task.train_examples": self.max_train_examples}
            )

    def list_remaining_trials(self, tuning: FinetuneConfig, rate: float) -> Iterator[FinetuneConfig]:
        """Yield all other trials, with the selected rate."""
        counts = [
            self.max_train_examples,
            *(count for count in self.train_examples if count != self.max_train_examples),
        ]
        for count in counts:
            for seed in self.seeds:
                if count != self.max_train_examples or seed != self.seeds[0]:
                    yield tuning.replace({"train.lr": rate, "train.seed": seed, "task.train_examples": count})


DEFAULT_EPOCHS, MIN_STEPS, MAX_EPOCHS = 3.0, 300, 30.0
"""Three epochs (Devlin et al., 2019), or more on small data (Mosbach et al., 2021): 300 steps or 30 epochs."""
EVALUATIONS_PER_RUN, LONG_EPOCH_STEPS = 10, 500
"""Epochs of more than LONG_EPOCH_STEPS steps are evaluated EVALUATIONS_PER_RUN times per run instead."""


def count_steps(train_config: FinetuneTrainConfig, steps_per_epoch: int, *, is_parameter_efficient: bool) -> int:
    """Return the number of steps; parameter-efficient methods train twice as long by default."""
    if train_config.steps is not None:
        return train_config.steps
    if train_config.epochs is not None:
        return max(math.ceil(train_config.epochs * steps_per_epoch), 1)
    default_steps = max(DEFAULT_EPOCHS * steps_per_epoch, min(MIN_STEPS, MAX_EPOCHS * steps_per_epoch))
    return math.ceil(default_steps * (2 if is_parameter_efficient else 1))


def compute_eval_interval(steps_per_epoch: int, steps: int) -> int:
    """Return the steps between evaluations: an epoch, or a tenth of the run if epochs are long or very short.

    >>> compute_eval_interval(100, 300), compute_eval_interval(2000, 6000), compute_eval_interval(2, 300)
    (100, 600, 30)
    """
    tenth = max(steps // EVALUATIONS_PER_RUN, 1)
    return tenth if steps_per_epoch > LONG_EPOCH_STEPS or steps_per_epoch < tenth else steps_per_epoch


BASELINE_SECONDS: Mapping[str, float] = {"majority": 0.0, "svm": 0.01, "vectors": 0.04, "logistic": 0.03, "bilstm": 1.4}
"""Seconds of a baseline per 1,000 characters, measured on one core of a Neoverse-N1; others take as long as `vectors`.
"""
FORWARD_SHARE = 1 / 3
"""Cost of a prediction relative to a training step, until one has been timed."""


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
