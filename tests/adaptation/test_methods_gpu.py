"""Prefixes and weights of 4 bits on a GPU: what a CPU says, in every backend that can, and compiled."""

import copy
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.adaptation.peft.prefix import PrefixTuning
from pretune.adaptation.peft.qlora import QLoRA, Weight4bit
from pretune.core.errors import UsageError
from pretune.models.catalog import build
from pretune.models.model import LanguageModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SMALL = {"width": 128, "depth": 2, "heads": 2, "vocab": 90}
MORE = {"mistral": {"kv_heads": 1, "window": 60, "hidden": 256}, "llama3": {"kv_heads": 1, "hidden": 256}}
LONG = (200, 137, 300, 9, 340)


def laid(model: LanguageModel, lengths: tuple[int, ...], row: int | None) -> pt.Batch:
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(5, 90, (n,), generator=generator).tolist() for n in lengths]
    labels = [[token if i % 5 == 0 else -100 for i, token in enumerate(row)] for row in tokens]
    if model.spec.is_encoder_decoder:
        return pt.batch(source=tokens, target=tokens, row=row, labels=labels)
    return pt.batch(tokens, row=row, labels=labels)


def compute_loss_and_grads(model: LanguageModel, batch: pt.Batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss and the gradients of all that is trained."""
    model.zero_grad()
    loss = model.loss(model.states(batch), batch).mean()
    loss.backward()
    return loss.detach().cpu(), [p.grad.cpu().clone() for p in model.parameters() if p.grad is not None]


def alike(actual: Any, expected: Any, tolerance: float) -> None:
    torch.testing.assert_close(actual[0], expected[0], rtol=tolerance, atol=tolerance)
    assert len(actual[1]) == len(expected[1]) > 0
    for actual_grad, expected_grad in zip(actual[1], expected[1], strict=True):
        scale = float(expected_grad.abs().max().clamp(min=1e-3))
        torch.testing.assert_close(actual_grad, expected_grad, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama3", "mistral", "mpt", "t5"])
@pytest.mark.parametrize(("lengths", "row"), [(LONG, 480), ((160, 160), None)], ids=["packed", "whole"])
def test_a_prefix_in_every_backend(family: str, lengths: tuple[int, ...], row: int | None) -> None:
    torch.compiler.reset()
    model = build(family, **SMALL, **MORE.get(family, {}))
    for name in PrefixTuning(count=7).apply(model):
        with torch.no_grad():
            model.get_parameter(name).add_(0.2 * torch.randn(model.get_parameter(name).shape))
    model.eval()
    model.attention_backend = "eager"
    batch = laid(model, lengths, row)
    expected = compute_loss_and_grads(model, batch)
    model.cuda()
    able = []
    for backend in ("eager", "rows", "flex", "sdpa"):
        model.attention_backend = backend  # type: ignore[assignment]
        try:
            alike(compute_loss_and_grads(model, batch.to("cuda")), expected, 2e-3)
            able.append(backend)
        except UsageError:
            assert backend == "sdpa"
    assert able[:3] == ["eager", "rows", "flex"]
    model.attention_backend = None
    alike(compute_loss_and_grads(model, batch.to("cuda")), expected, 2e-3)


def test_4_bits_are_the_same_bits() -> None:
    weight = 0.05 * torch.randn(300, 700)
    cpu_weight, gpu_weight = Weight4bit(weight), Weight4bit(weight.cuda())
    assert torch.equal(cpu_weight.codes, gpu_weight.codes.cpu())
    assert (cpu_weight.scales.int() - gpu_weight.scales.cpu().int()).abs().max() <= 1
    gpu_values = gpu_weight.dequantize(torch.float32).cpu()
    torch.testing.assert_close(gpu_values, cpu_weight.dequantize(torch.float32), rtol=0.03, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_qlora(compiled: bool) -> None:
    torch.compiler.reset()
    model = build("llama3", **SMALL, **MORE["llama3"])
    for name in QLoRA(rank=4).apply(model):
        with torch.no_grad():
            model.get_parameter(name).add_(0.05 * torch.randn(model.get_parameter(name).shape))
    model.eval()
    batch = laid(model, (30, 20, 50), 64)
    expected = compute_loss_and_grads(model, batch)
    model = copy.deepcopy(model).cuda()
    if compiled:
        model.compile()
    alike(compute_loss_and_grads(model, batch.to("cuda")), expected, 2e-3)
    with torch.autocast("cuda", torch.bfloat16):
        loss, gradients = compute_loss_and_grads(model, batch.to("cuda"))
    torch.testing.assert_close(loss, expected[0], rtol=0.05, atol=0.05)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
