"""What a fine-tuning run tries: learning rates, seeds, numbers of labels; and in which order."""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.runs.finetune.config import Tuning

TRIALS = "trials"


@spec
class Plan:
    """Rates are tried with the first seed and all labels, on dev; the other seeds and counts follow with the best."""

    rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0,)
    labels: tuple[int | None, ...] = (None,)  # training examples; None: all
    baselines: tuple[str, ...] = ()
    forgetting: str | None = None  # prepared data, on which the pre-training loss is measured before and after
    vectors: str | None = None  # a file of word vectors, for the baseline `vectors`

    def __post_init__(self) -> None:
        for name, values in (("learning rates", self.rates), ("seeds", self.seeds), ("numbers of labels", self.labels)):
            if not values or len(set(values)) < len(values):
                raise UsageError(f"{name} {', '.join(map(str, values))}: give at least one, and each once")

    @property
    def alone(self) -> bool:
        """Whether there is one trial, which then is the run itself."""
        return len(self.rates) == len(self.seeds) == len(self.labels) == 1

    @property
    def count(self) -> int:
        """The number of trials."""
        return len(self.rates) - 1 + len(self.seeds) * len(self.labels)

    @property
    def most(self) -> int | None:
        """The largest number of labels: that of the result."""
        return None if None in self.labels else max(count for count in self.labels if count is not None)

    def where(self, run: Path, tuning: Tuning) -> Path:
        """The directory of a trial."""
        if self.alone:
            return run
        fit = tuning.train
        return run / TRIALS / f"labels-{tuning.task.labels or 'all'}-lr-{fit.lr:g}-seed-{fit.seed}"

    def rated(self, tuning: Tuning) -> Iterator[Tuning]:
        """The trials that choose a learning rate; with one rate, its first trial."""
        for rate in self.rates:
            yield tuning.changed({"train.lr": rate, "train.seed": self.seeds[0], "task.labels": self.most})

    def rest(self, tuning: Tuning, rate: float) -> Iterator[Tuning]:
        """All others, with the rate that was chosen."""
        counts = [self.most, *(count for count in self.labels if count != self.most)]
        for count in counts:
            for seed in self.seeds:
                if count != self.most or seed != self.seeds[0]:
                    yield tuning.changed({"train.lr": rate, "train.seed": seed, "task.labels": count})
