"""NT-ASGD: the trigger, the averages and their checkpoints, against the algorithm written out."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from pretune.core.errors import UsageError
from pretune.training.optim import AdamW, build_parameter_groups, get_state_tensors, load_state, use_averages
from pretune.training.optim import step_if as take
from pretune.training.optim.sgd import ASGD, AveragedDescent

LOSSES = {
    "falling": [5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.4],
    "flat": [5.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0],
    "rising at the end": [5.0, 4.0, 3.0, 3.5, 3.4, 3.3, 3.2],
    "rising": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    "not finite": [math.nan, 2.0, 1.0, math.inf, 3.0, 2.0, math.nan],
}


def reference(losses: list[float], interval: int) -> int | None:
    """Algorithm 1 of Merity et al. (2018): the evaluation at which averaging begins."""
    logs: list[float] = []
    for t, loss in enumerate(losses):
        if t > interval and loss > min(logs[index] for index in range(t - interval)):
            return t
        logs.append(math.inf if math.isnan(loss) else loss)
    return None


def optimizer_of(model: nn.Module, **fields: Any) -> AveragedDescent:
    return ASGD(**{"lr": 0.1, "weight_decay": 0.0, **fields}).build(build_parameter_groups(model))


@pytest.mark.parametrize("interval", [0, 1, 2, 5])
@pytest.mark.parametrize("name", LOSSES)
def test_the_trigger_is_the_papers(name: str, interval: int) -> None:
    optimizer = optimizer_of(nn.Linear(2, 2), nonmonotone_interval=interval)
    fired = [t for t, loss in enumerate(LOSSES[name]) if optimizer.observe(loss)]
    assert fired == [t for t in [reference(LOSSES[name], interval)] if t is not None]
    assert optimizer.is_triggered is bool(fired)
    assert all((state["since"] > 0).item() is bool(fired) for state in optimizer.state.values())


@pytest.mark.parametrize("interval", [0, 1, 5])
def test_the_evaluations_that_a_trigger_needs(interval: int) -> None:
    """The last evaluation is at the end of a run: a trigger there changes nothing."""
    spec = ASGD(nonmonotone_interval=interval)
    for count in range(12):
        rising = [float(loss) for loss in range(count)]
        fired = reference(rising, interval)
        assert spec.can_trigger(count) is (fired is not None and fired < count - 1)


def test_an_interval_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="nonmonotone_interval"):
        ASGD(nonmonotone_interval=-1)


def test_averages_and_a_checkpoint_in_the_middle() -> None:
    """The mean of the weights from the second step after the trigger on; a copy restored from a checkpoint goes on."""
    torch.manual_seed(0)
    slopes = torch.randn(9, 3, 2)

    def advance(model: nn.Linear, optimizer: AveragedDescent, number: int) -> None:
        model.weight.grad = slopes[number].clone()
        take(optimizer, torch.tensor(True))

    model = nn.Linear(2, 3, bias=False)
    optimizer, passed = optimizer_of(model, nonmonotone_interval=0), [model.weight.detach().clone()]
    for number in range(9):
        advance(model, optimizer, number)
        passed.append(passed[-1] - 0.1 * slopes[number])
        torch.testing.assert_close(model.weight.detach(), passed[-1])
        assert optimizer.observe(float(number != 0)) is (number == 1)  # after two steps
        if number == 5:
            with use_averages(optimizer):
                stored = {name: tensor.clone() for name, tensor in get_state_tensors(optimizer, model).items()}
                weight, trigger = model.weight.detach().clone(), optimizer.get_trigger_state()
    torch.testing.assert_close(weight, torch.stack(passed[4:7]).mean(0))
    torch.testing.assert_close(stored["weight.average"], passed[6])
    with use_averages(optimizer):
        torch.testing.assert_close(model.weight.detach(), torch.stack(passed[4:]).mean(0))
        last = model.weight.detach().clone()

    twin = nn.Linear(2, 3, bias=False)
    other = optimizer_of(twin, nonmonotone_interval=0)
    load_state(other, twin, stored)
    twin.weight.data.copy_(weight)
    other.load_trigger_state(trigger)
    other.swap()
    for number in range(6, 9):
        advance(twin, other, number)
        assert not other.observe(9.0)  # it has been triggered
    with use_averages(other):
        assert torch.equal(twin.weight, last)


def test_others_are_evaluated_as_they_are() -> None:
    model = nn.Linear(2, 2)
    previous = model.weight.detach().clone()
    with use_averages(AdamW().build(build_parameter_groups(model))):
        assert torch.equal(model.weight, previous)
