"""Plan of a fine-tuning run: learning rates, seeds, training set sizes, and their order."""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.runs.finetune.config import FinetuneConfig

TRIALS_DIR = "trials"


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

    def get_trial_dir(self, run: Path, tuning: FinetuneConfig) -> Path:
        """Return the directory of a trial."""
        if self.is_single:
            return run
        train_config = tuning.train
        return (
            run
            / TRIALS_DIR
            / f"labels-{tuning.task.train_examples or 'all'}-lr-{train_config.lr:g}-seed-{train_config.seed}"
        )

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
