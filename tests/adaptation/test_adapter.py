"""Adapters: what they compute, where they stand, and how many parameters that is."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pretune.adaptation.peft.adapter import Adapter, LinearWithAdapter, Sublayer
from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel
from tests.contracts.tiny import model_of

WIDTH, SMALL = 32, 6


def apply_adapter(case: str, **settings: object) -> tuple[LanguageModel, tuple[str, ...]]:
    model = copy.deepcopy(model_of(case))
    return model, Adapter(bottleneck=SMALL, **settings).apply(model, seed=3)  # type: ignore[arg-type]


def stands(model: LanguageModel) -> list[str]:
    return [path for path, module in model.named_modules() if isinstance(module, LinearWithAdapter)]


@pytest.mark.parametrize(("activation", "same"), [("gelu", F.gelu), ("relu", F.relu)])
def test_it_adds_a_bottleneck_to_what_the_layer_writes(activation: str, same: object) -> None:
    linear = nn.Linear(5, 8)
    layer = LinearWithAdapter(linear, Adapter(bottleneck=3, activation=activation), seed=0)  # type: ignore[arg-type]
    x, inner = torch.randn(4, 5), layer.adapter
    assert torch.equal(layer(x), linear(x))
    with torch.no_grad():
        for parameter in inner.parameters():
            parameter.normal_()
    y = linear(x)
    expected = y + (same(y @ inner.down.T + inner.down_bias) @ inner.up.T + inner.up_bias)  # type: ignore[operator]
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize(
    ("case", "sublayers", "ends", "count"),
    [
        ("bert-base", ("attention", "feedforward"), {"attention.out", "feedforward.down"}, 4),
        ("bert-base", ("feedforward",), {"feedforward.down"}, 2),
        ("bert-base", ("attention",), {"attention.out"}, 2),
        ("bart-base", ("attention", "feedforward"), {"attention.out", "cross.out", "feedforward.down"}, 10),
    ],
)
def test_where_they_stand(case: str, sublayers: tuple[Sublayer, ...], ends: set[str], count: int) -> None:
    """After every sublayer of every block, that which reads a source among them."""
    paths = stands(apply_adapter(case, sublayers=sublayers)[0])
    assert len(paths) == count and {path.split(".", 2)[2] for path in paths} == ends


def test_so_many_parameters_are_trained() -> None:
    """2 m d + m + d each (Houlsby et al., 2019, section 2.1); two vectors a norm, one of which is before the blocks."""
    model, names = apply_adapter("bert-base")
    numbers = sum(model.get_parameter(name).numel() for name in names)
    assert numbers == 4 * (2 * SMALL * WIDTH + SMALL + WIDTH) + 5 * 2 * WIDTH
    bare, fewer = apply_adapter("bert-base", norms=False)
    assert sum(bare.get_parameter(name).numel() for name in fewer) == 4 * (2 * SMALL * WIDTH + SMALL + WIDTH)
    assert {*names} - {*fewer} == {name for name in names if "norm" in name}
    assert not any(name.startswith(("tokens", "head")) for name in names)


def test_each_is_drawn_by_itself() -> None:
    model, _ = apply_adapter("bert-base")
    downs = [model.get_submodule(path).adapter.down for path in stands(model)]
    assert all(not torch.equal(first, second) for i, first in enumerate(downs) for second in downs[:i])
    second_model, _ = apply_adapter("bert-base")
    assert torch.equal(downs[2], second_model.get_submodule(stands(second_model)[2]).adapter.down)


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError):
        Adapter(sublayers=())
