"""How long a run is where nobody says it."""

import pytest

from pretune.adaptation.freeze import Full
from pretune.adaptation.methods import AnyMethod
from pretune.adaptation.peft.vectors import BitFit
from pretune.runs.finetune.config import (
    AdaptationConfig,
    BaseConfig,
    FinetuneConfig,
    FinetuneTrainConfig,
    SequenceConfig,
    TaskConfig,
    compute_eval_interval,
)


def count_steps(epoch: int, method: AnyMethod, **length: float) -> int:
    """Return the steps of a run with a method, of so many steps per epoch."""
    train = FinetuneTrainConfig(lr=1.0, **length)  # type: ignore[arg-type]
    base, task = BaseConfig(path="base"), TaskConfig(name="sst2")
    tuning = FinetuneConfig(
        base=base, task=task, method=method, tune=AdaptationConfig(), data=SequenceConfig(), train=train
    )
    return tuning.count_steps(epoch)


@pytest.mark.parametrize(
    ("epoch", "steps"),
    [
        (2104, 6312),  # many examples: three epochs
        (100, 300),
        (50, 300),  # fewer: as many steps as a hundred batches would have
        (10, 300),
        (4, 120),  # very few: thirty epochs, and no more
        (1, 30),
    ],
)
def test_few_examples_are_read_more_often(epoch: int, steps: int) -> None:
    assert count_steps(epoch, Full()) == steps
    assert count_steps(epoch, BitFit()) == 2 * steps


def test_what_is_asked_for_is_done() -> None:
    assert count_steps(100, BitFit(), steps=7) == 7
    assert count_steps(3, BitFit(), epochs=2.5) == 8
    assert count_steps(3, Full(), epochs=0.01) == 1


@pytest.mark.parametrize(("epoch", "steps", "every"), [(30, 300, 30), (501, 1503, 150), (500, 1500, 500), (1, 4, 1)])
def test_dev_is_looked_at_every_epoch_or_ten_times(epoch: int, steps: int, every: int) -> None:
    assert compute_eval_interval(epoch, steps) == every
