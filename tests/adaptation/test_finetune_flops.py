"""FLOPs of steps in which not everything is trained, beside name torch counts."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pretune.adaptation.adapted import FlopsCounter, ModelWithHead, adapt, compute_flops_share
from pretune.adaptation.freeze import FirstFrozen, FreezeStrategy, Frozen, Gradual, LastOnly, freeze
from pretune.adaptation.heads.sequence import Classification
from pretune.adaptation.methods import METHODS, apply_method
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.training.batch_transfer import BatchStats
from tests.contracts.tiny import lay, text

SMALL = {"width": 64, "depth": 4, "heads": 2, "hidden": 256, "vocab": 120}


def build_model(family: str = "bert-tiny") -> ModelWithHead:
    return adapt(build(resolve(family, SMALL), seed=1), Classification(classes=2, dropout=0.0)).train()


def count_torch_flops(model: ModelWithHead) -> int:
    """Return the FLOPs that torch counts in a forward and a backward pass."""
    batch = lay(model.model.spec, text(*[40] * 4))
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(model(batch).float().sum())
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("full", 1.0),
        ("frozen", 1 / 3),
        ("lora", 2 / 3),
        ("ia3", 2 / 3),
        ("bitfit", 2 / 3),
        ("prompt", 2 / 3),
        ("last", (1 + 1 / 4 + 1 / 4) / 3),
        ("first", (1 + 1 / 2 + 1 / 2) / 3),
    ],
)
def test_the_share_of_a_method(name: str, expected: float) -> None:
    full_model = build_model()
    model = copy.deepcopy(full_model)
    strategies: dict[str, FreezeStrategy] = {"last": LastOnly(), "first": FirstFrozen(layers=2), "frozen": Frozen()}
    if name in strategies:
        freeze(model, strategies[name])
    else:
        apply_method(model, METHODS.get(name)())
    share = compute_flops_share(model)
    assert share == pytest.approx(expected, rel=0.05)
    if name not in ("ia3", "bitfit"):  # which come with products that are no matrices, or with none
        assert share == pytest.approx(count_torch_flops(model) / count_torch_flops(full_model), rel=0.12)


def test_parts_that_are_opened_cost_more_from_then_on() -> None:
    model = build_model()
    hook = Gradual().build_hook(model, epoch=1)
    spending = FlopsCounter(model, lambda: hook.num_unfrozen)
    step = BatchStats(sequences=4, tokens=160, squares=6400)
    first = spending(step)
    hook.num_unfrozen = len(hook.parts) - 1
    hook.update_requires_grad()
    total = spending(step + step)
    assert total - first == pytest.approx(3 * first, rel=1e-6)
    assert spending(BatchStats()) == 0.0  # a meter that begins anew
