"""What a fine-tuning run tries: learning rates, seeds, numbers of labels; and in which order."""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.runs.finetune.config import FinetuneConfig

TRIALS_DIR = "trials"


@spec(tagged=False)
class SweepPlan:
    """Rates are tried with the first seed and all labels, on dev; the other seeds and counts follow with the best."""

    rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0,)
    train_examples: tuple[int | None, ...] = (None,)  # training examples; None: all
    baselines: tuple[str, ...] = ()
    forgetting: str | None = None  # prepared data, on which the pre-training loss is measured before and after
    vectors: str | None = None  # a file of word vectors, for the baseline `vectors`

    def __post_init__(self) -> None:
        for name, values in (
            ("learning rates", self.rates),
            ("seeds", self.seeds),
            ("numbers of training examples", self.train_examples),
        ):
            if not values or len(set(values)) < len(values):
                raise UsageError(f"{name} {', '.join(map(str, values))}: give at least one, and each once")

    @property
    def is_single(self) -> bool:
        """Whether there is one trial, which then is the run itself."""
        return len(self.rates) == len(self.seeds) == len(self.train_examples) == 1

    @property
    def trial_count(self) -> int:
        """The number of trials."""
        return len(self.rates) - 1 + len(self.seeds) * len(self.train_examples)

    @property
    def max_train_examples(self) -> int | None:
        """The largest number of labels: that of the result."""
        return None if None in self.train_examples else max(count for count in self.train_examples if count is not None)

    def get_trial_dir(self, run: Path, tuning: FinetuneConfig) -> Path:
        """The directory of a trial."""
        if self.is_single:
            return run
        fit = tuning.train
        return run / TRIALS_DIR / f"labels-{tuning.task.train_examples or 'all'}-lr-{fit.lr:g}-seed-{fit.seed}"

    def list_rate_trials(self, tuning: FinetuneConfig) -> Iterator[FinetuneConfig]:
        """The trials that choose a learning rate; with one rate, its first trial."""
        for rate in self.rates:
            yield tuning.replace(
                {"train.lr": rate, "train.seed": self.seeds[0], "task.train_examples": self.max_train_examples}
            )

    def list_remaining_trials(self, tuning: FinetuneConfig, rate: float) -> Iterator[FinetuneConfig]:
        """All others, with the rate that was chosen."""
        counts = [
            self.max_train_examples,
            *(count for count in self.train_examples if count != self.max_train_examples),
        ]
        for count in counts:
            for seed in self.seeds:
                if count != self.max_train_examples or seed != self.seeds[0]:
                    yield tuning.replace({"train.lr": rate, "train.seed": seed, "task.train_examples": count})
