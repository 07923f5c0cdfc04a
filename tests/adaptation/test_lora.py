"""Low-rank products beside frozen layers: what is dropped, how they start, and how strong they are."""

import copy

import pytest
import torch
from torch import nn

from pretune.adaptation.peft.lora import LoRA, LoraLinear
from tests.contracts.tiny import model_of


def build_layers(**settings: object) -> tuple[nn.Linear, LoraLinear]:
    torch.manual_seed(0)
    linear = nn.Linear(40, 7)
    layer = LoraLinear(linear, LoRA(rank=3, alpha=6.0, **settings), seed=1)  # type: ignore[arg-type]
    return linear, layer


def test_dropout_is_of_what_the_product_reads_alone() -> None:
    linear, layer = build_layers(dropout=0.5)
    x = torch.randn(2000, 40)
    assert torch.equal(layer.train()(x), linear(x))  # at first there is no product, and the layer itself reads all
    nn.init.normal_(layer.b, std=0.1)
    full = layer.eval()(x)
    torch.testing.assert_close(full, linear(x) + 2.0 * (x @ layer.a.T @ layer.b.T))  # alpha / rank
    torch.manual_seed(3)
    loud = [layer.train()(x) for _ in range(40)]
    assert not torch.equal(loud[0], loud[1])
    mean = torch.stack(loud).mean((0, 1)) - full.mean(0)
    assert mean.abs().max() < 0.02  # what is left is scaled, so that on average nothing is lost


def test_a_model_that_is_asked_drops_nothing() -> None:
    model = copy.deepcopy(model_of("bert-base"))
    LoRA(rank=2, dropout=0.9).apply(model)
    layers = [module for module in model.modules() if isinstance(module, LoraLinear)]
    assert len(layers) == 4 and all(layer.dropout.p == 0.9 for layer in layers)
    x = torch.randn(3, 32)
    for layer in layers:
        nn.init.normal_(layer.b)
        assert torch.equal(layer.eval()(x), layer(x))


@pytest.mark.parametrize("rank", [1, 8])
def test_each_product_starts_at_nothing_with_a_reader_of_its_own(rank: int) -> None:
    model = copy.deepcopy(model_of("bert-base"))
    LoRA(rank=rank).apply(model, seed=5)
    layers = [module for module in model.modules() if isinstance(module, LoraLinear)]
    assert all(not layer.b.any() for layer in layers)
    assert all(layer.a.abs().max() <= 1 / 32**0.5 + 1e-6 and layer.a.std() > 0.05 for layer in layers)
    for i, layer in enumerate(layers):
        assert all(not torch.equal(layer.a, other.a) for other in layers[:i])
