"""How long a run is where nobody says it."""

import pytest

from pretune.runs.finetune.config import Fit
from pretune.runs.finetune.default_steps import evaluations, lasting


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
    assert lasting(Fit(lr=1.0), epoch, few=False) == steps
    assert lasting(Fit(lr=1.0), epoch, few=True) == 2 * steps


def test_what_is_asked_for_is_done() -> None:
    assert lasting(Fit(lr=1.0, steps=7), 100, few=True) == 7
    assert lasting(Fit(lr=1.0, epochs=2.5), 3, few=True) == 8
    assert lasting(Fit(lr=1.0, epochs=0.01), 3, few=False) == 1


@pytest.mark.parametrize(("epoch", "steps", "every"), [(30, 300, 30), (501, 1503, 150), (500, 1500, 500), (1, 4, 1)])
def test_dev_is_looked_at_every_epoch_or_ten_times(epoch: int, steps: int, every: int) -> None:
    assert evaluations(epoch, steps) == every
