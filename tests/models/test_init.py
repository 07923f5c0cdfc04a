"""Fresh weights: every parameter is drawn or set, and deviations are those that are stated."""

import math

import pytest
import torch
from torch import Tensor, nn

from pretune.core import config
from pretune.models.catalog import resolve
from pretune.models.model import LanguageModel, build, build_empty
from pretune.models.spec import GATE_BIAS, FanIn, Init, Normal, initialise
from pretune.nn.characters import HighwayLayer
from pretune.nn.layers import ZeroCenteredRMSNorm
from pretune.nn.lstm import LSTMLayer
from tests.contracts.tiny import CASES

WIDE = {"width": 96, "depth": 3, "heads": 4, "vocab": 300, "hidden": 160}


def std(weight: Tensor) -> float:
    return float(weight.detach().double().std())


def about(weight: Tensor, expected: float) -> None:
    """Its deviation, within five standard errors of a normal sample's; its mean too."""
    n = weight.numel()
    assert abs(std(weight) / expected - 1) < 5 / math.sqrt(2 * n), (std(weight), expected)
    assert abs(float(weight.detach().double().mean())) < 5 * expected / math.sqrt(n)


def poisoned(model: LanguageModel) -> LanguageModel:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(float("nan"))
    return model


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left(name: str) -> None:
    """Memory full of NaN becomes weights; biases are 0, of highway gates `GATE_BIAS`, norms multiply by 1."""
    spec = CASES[name]
    model = poisoned(build_empty(spec).to_empty(device="cpu"))
    initialise(model, spec.init, spec.depth, seed=1)
    assert all(torch.isfinite(tensor).all() for tensor in (*model.parameters(), *model.buffers()))
    drawn = {id(p) for layer in model.modules() if isinstance(layer, LSTMLayer) for p in layer.parameters()}
    gates = {id(layer.gate) for layer in model.modules() if isinstance(layer, HighwayLayer)}
    for module in model.modules():
        for path, parameter in module.named_parameters(recurse=False):
            if id(parameter) in drawn:  # LSTM layers: biases too
                assert std(parameter) > 0
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
                is_factor = path == "weight" and not isinstance(module, ZeroCenteredRMSNorm)
                assert (parameter == (1.0 if is_factor else 0.0)).all()
            elif path == "bias":
                assert (parameter == (GATE_BIAS if id(module) in gates else 0.0)).all()
            else:
                assert parameter.dim() >= 2 and std(parameter) > 0
    assert all((buffer == 0).all() for buffer in model.buffers())


@pytest.mark.parametrize("residual", [False, True])
def test_normal(residual: bool) -> None:
    spec = config.replace(resolve("gpt2", WIDE), {"init": Normal(std=0.05, residual=residual)})
    model = build(spec, seed=2)
    written = 0.05 / math.sqrt(2 * 3) if residual else 0.05
    about(model.tokens.weight, 0.05)
    about(model.decoder.position.table.weight, 0.05)
    for layer in model.decoder:
        for part in (layer.attention.q, layer.attention.k, layer.attention.v, layer.feedforward.up):
            about(part.weight, 0.05)
        for part in (layer.attention.out, layer.feedforward.down):
            about(part.weight, written)


def test_normal_elsewhere() -> None:
    """Heads, projections and gates; what writes to the residual stream in the attention to the source."""
    llama = build(config.replace(resolve("llama", WIDE), {"init.residual": True, "init.std": 0.1}))
    about(llama.head.weight, 0.1)
    about(llama.decoder[0].feedforward.gate.weight, 0.1)
    about(llama.decoder[0].feedforward.down.weight, 0.1 / math.sqrt(6))
    bart = build(config.replace(resolve("bart", WIDE), {"init.residual": True, "init.std": 0.1}))
    about(bart.decoder[1].cross.out.weight, 0.1 / math.sqrt(6))
    about(bart.decoder[1].cross.q.weight, 0.1)
    bert = build(resolve("bert", WIDE))
    about(bert.head.transform.dense.weight, 0.02)
    about(bert.pooler.dense.weight, 0.02)
    about(bert.pair.weight, 0.02)


def test_fan_in() -> None:
    """One over the square root of what is summed; the attention's missing scale is in its queries."""
    model = build(config.replace(resolve("t5v1.1", {**WIDE, "head_width": 20}), {"init": FanIn(factor=2.0)}), seed=4)
    about(model.tokens.weight, 2.0)
    for layer in (*model.encoder, *model.decoder):
        for attention in (layer.attention, *([layer.cross] if layer.cross else [])):
            about(attention.q.weight, 2 / math.sqrt(96 * 20))
            about(attention.k.weight, 2 / math.sqrt(96))
            about(attention.v.weight, 2 / math.sqrt(96))
            about(attention.out.weight, 2 / math.sqrt(4 * 20))
        about(layer.feedforward.up.weight, 2 / math.sqrt(96))
        about(layer.feedforward.gate.weight, 2 / math.sqrt(96))
        about(layer.feedforward.down.weight, 2 / math.sqrt(160))
    about(model.head.weight, 2 / math.sqrt(96))


@pytest.mark.parametrize("how", [Normal(), FanIn()], ids=repr)
def test_shared_weights_are_drawn_once(how: Init) -> None:
    """A decoder over the encoder's weights draws only what is its own, so the halves stay one."""
    model = build(config.replace(CASES["t5-table-enc-dec-shared"], {"init": how}))
    for mine, other in zip(model.decoder, model.encoder, strict=True):
        assert mine.attention.q.weight is other.attention.q.weight
        assert not torch.equal(mine.cross.q.weight, other.attention.q.weight)


def test_the_order_of_names_is_the_order_of_draws() -> None:
    """A deeper model starts with the same layers: what comes later in the order of names changes nothing before."""
    shallow, deep = (build(resolve("llama", {**WIDE, "depth": depth}), seed=9) for depth in (1, 2))
    assert torch.equal(shallow.tokens.weight, deep.tokens.weight)
    assert torch.equal(shallow.decoder[0].feedforward.down.weight, deep.decoder[0].feedforward.down.weight)


def test_no_draw_touches_the_global_generator() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    build(CASES["bert-base"], seed=5)
    assert torch.equal(torch.rand(3), expected)
