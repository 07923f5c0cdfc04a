"""Weight-only quantization: close to the original, exact about what it keeps, and refused where it has no meaning."""

from pathlib import Path

import pytest
import torch
from torch import nn

import pretune as pt
from pretune.adaptation.adapted import adapt
from pretune.adaptation.heads.sequence import Classification
from pretune.adaptation.peft.io import save_adapter
from pretune.adaptation.quantized import (
    FEW_ROWS,
    Linear8bit,
    Quantization,
    count_bytes,
    count_parameters,
    is_quantized,
    quantize_model,
)
from pretune.core.errors import UsageError
from pretune.models.model import build
from tests.contracts.laws import read
from tests.contracts.tiny import CASES, model_of, rough, text, tiny
from tests.selection import keep_quick

SENTENCES = text(6, 3, 8, 1, 5)


def linear(inputs: int = 24, outputs: int = 40) -> nn.Linear:
    torch.manual_seed(2)
    return nn.Linear(inputs, outputs)


def test_a_weight_is_within_half_a_step() -> None:
    layer = linear()
    step = layer.weight.abs().amax(1, keepdim=True) / 127
    assert ((Linear8bit(layer).compute_weight() - layer.weight).abs() <= step / 2 * 1.0001).all()


@pytest.mark.parametrize("inputs", [24, 128])
@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 100])
def test_products_are_those_of_the_dequantized_weight(rows: int, inputs: int) -> None:
    layer = linear(inputs)
    small, x = Linear8bit(layer), torch.randn(rows, inputs, generator=torch.Generator().manual_seed(1))
    expected = nn.functional.linear(x, small.compute_weight(), layer.bias)
    # A few rows may be multiplied in bfloat16.
    assert (small(x) - expected).norm() <= (0.01 if rows <= FEW_ROWS else 1e-5) * expected.norm()
    torch.testing.assert_close(small(x.view(1, rows, inputs)), small(x)[None], rtol=0, atol=0)


def test_zero_rows_stay_zero() -> None:
    layer = linear()
    with torch.no_grad():
        layer.weight[3] = 0
    assert (Linear8bit(layer).compute_weight()[3] == 0).all()


GATED = ("t5v1.1-base", "mt5-base")
"""Tiny T5 models with gated layers and random weights have an error of 0.436 with 4 bits."""


@torch.no_grad()
@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("name", keep_quick(CASES, "bert-base", "llama3-8b", "t5-base", "made-recurrent"))
def test_every_family(name: str, kind: Quantization, tmp_path: Path) -> None:
    original = model_of(name)
    pt.save(original, tmp_path)
    small = pt.load(tmp_path, quantize=kind)
    assert is_quantized(small) and count_bytes(small) < count_bytes(original)
    assert not any(parameter.requires_grad for parameter in small.parameters())
    later = pt.load(tmp_path)
    quantize_model(later, kind)
    while_loaded, afterwards = small.state_dict(), later.state_dict()
    assert {*while_loaded} == {*afterwards}
    assert all(
        torch.equal(while_loaded[key].view(torch.uint8), afterwards[key].view(torch.uint8)) for key in afterwards
    )
    expected, actual = torch.cat(read(original, SENTENCES, row=11)), torch.cat(read(small, SENTENCES, row=11))
    error = (actual - expected).norm() / expected.norm()
    assert 0 < error < {"int8": 0.05, "nf4": 0.5 if name in GATED else 0.4}[kind]


def test_an_adapter_is_merged_first(tmp_path: Path) -> None:
    pt.save(rough(build(tiny("gpt2"))), tmp_path / "base")
    model, method = pt.load(tmp_path / "base"), pt.LoRA(rank=2)
    method.apply(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(4))
    save_adapter(model, method, tmp_path / "lora", base=str(tmp_path / "base"))
    merged, small = pt.load(tmp_path / "lora"), pt.load(tmp_path / "lora", quantize="int8")
    method.merge(merged)
    quantize_model(merged, "int8")
    assert torch.equal(torch.cat(read(small, SENTENCES)), torch.cat(read(merged, SENTENCES)))


def test_a_head_is_left_alone() -> None:
    model = adapt(rough(build(tiny("bert"))), Classification(classes=3))
    before = {name: tensor.clone() for name, tensor in model.head.state_dict().items()}
    quantize_model(model, "int8")
    after = model.head.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantized_weights_are_counted(kind: Quantization) -> None:
    model = rough(build(tiny("bert")))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count_parameters(model) == count
    quantize_model(model, kind)
    assert count_parameters(model) == count > sum(parameter.numel() for parameter in model.parameters())


def test_it_is_not_saved(tmp_path: Path) -> None:
    model = rough(build(tiny("bert")))
    quantize_model(model, "nf4")
    with pytest.raises(UsageError):
        pt.save(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="int8"):
        quantize_model(rough(build(tiny("bert"))), "int9")  # type: ignore[arg-type]
