"""How long a run is where nobody says it."""

import pytest

from pretune.runs.finetune.config import FinetuneTrainConfig, compute_eval_interval, count_steps


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
    assert count_steps(FinetuneTrainConfig(lr=1.0), epoch, is_parameter_efficient=False) == steps
    assert count_steps(FinetuneTrainConfig(lr=1.0), epoch, is_parameter_efficient=True) == 2 * steps


def test_what_is_asked_for_is_done() -> None:
    assert count_steps(FinetuneTrainConfig(lr=1.0, steps=7), 100, is_parameter_efficient=True) == 7
    assert count_steps(FinetuneTrainConfig(lr=1.0, epochs=2.5), 3, is_parameter_efficient=True) == 8
    assert count_steps(FinetuneTrainConfig(lr=1.0, epochs=0.01), 3, is_parameter_efficient=False) == 1


@pytest.mark.parametrize(("epoch", "steps", "every"), [(30, 300, 30), (501, 1503, 150), (500, 1500, 500), (1, 4, 1)])
def test_dev_is_looked_at_every_epoch_or_ten_times(epoch: int, steps: int, every: int) -> None:
    assert compute_eval_interval(epoch, steps) == every
