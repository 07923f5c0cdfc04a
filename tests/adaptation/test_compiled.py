"""Every PEFT method compiled with inductor: the loss and gradients of eager mode."""

import copy
import shutil

import pytest
import torch

import pretune as pt
from pretune.adaptation.peft import PEFT_METHODS
from pretune.adaptation.peft.lora import LoRA, LoraLinear
from pretune.models.catalog import build
from pretune.models.model import LanguageModel

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler on a CPU")
SMALL = {"width": 64, "depth": 2, "heads": 2, "vocab": 90}


def compute_gradients(model: LanguageModel, batch: pt.Batch) -> list[torch.Tensor]:
    """The loss and the gradients of all that is trained."""
    model.zero_grad()
    loss = model.loss(model.states(batch), batch).mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("method", list(PEFT_METHODS))
@pytest.mark.slow
def test_compiled_methods_equal_eager_mode(method: str, family: str) -> None:
    torch.compiler.reset()
    model = build(family, **SMALL)
    generator = torch.Generator().manual_seed(0)
    for name in PEFT_METHODS.get(method)().apply(model):
        with torch.no_grad():  # away from the identity at the start
            parameter = model.get_parameter(name)
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    model.eval()
    sequences = [torch.randint(5, 90, (n,), generator=generator).tolist() for n in (12, 9, 20)]
    batch = pt.batch(sequences, row=32, labels=sequences)
    expected = compute_gradients(model, batch)
    compiled = copy.deepcopy(model)
    compiled.compile()
    for ours, eager in zip(compute_gradients(compiled, batch), expected, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-7 + 1e-4 * float(eager.abs().max()))


@pytest.mark.slow
def test_a_compiled_lora_layer_keeps_its_scale() -> None:
    """Inductor drops `alpha` of `torch.add(y, product, alpha=…)`."""
    torch.compiler.reset()
    layer = LoraLinear(torch.nn.Linear(16, 8), LoRA(rank=2, alpha=8.0), seed=1)
    torch.nn.init.normal_(layer.b)
    x = torch.randn(4, 16)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(layer)(x), layer(x), rtol=1e-4, atol=1e-4)
