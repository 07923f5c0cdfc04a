"""What is done by hand on a CPU: the same values and gradients as torch's, and chances as asked for."""

import pytest
import torch
import torch.nn.functional as F

from pretune.nn.processor import Dropout, dropout, gelu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gelu_is_torch_s(dtype: torch.dtype) -> None:
    x = torch.cat((torch.linspace(-40, 40, 4001), torch.tensor([0.0, -0.0, 1e-30, -1e30, 1e30]))).to(dtype)
    slope = torch.randn(len(x), dtype=dtype)
    found = []
    for function in (gelu, F.gelu):
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        out.backward(slope)
        found.append((out.detach(), leaf.grad))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    assert torch.autograd.gradcheck(gelu, torch.randn(7, dtype=torch.float64, requires_grad=True))


def test_gelu_without_gradients_keeps_nothing() -> None:
    x = torch.randn(5, requires_grad=True)
    with torch.no_grad():
        assert gelu(x).grad_fn is None and torch.equal(gelu(x), F.gelu(x))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1e-4])
@pytest.mark.parametrize("count", [1, 3, 999_999])
def test_dropout_drops_as_often_as_asked_and_keeps_the_mean(p: float, count: int) -> None:
    torch.manual_seed(1)
    x = torch.ones(count, requires_grad=True)
    out = dropout(x, p)
    share = round(p * 2**16) / 2**16
    kept = out != 0
    assert all(value in (0.0, pytest.approx(1 / (1 - share))) for value in out.detach().unique().tolist())
    if count > 3:
        sigma = (share * (1 - share) / count) ** 0.5
        assert abs((~kept).float().mean().item() - share) < 4 * sigma
        runs = (kept[1:] & kept[:-1]).float().mean().item()  # neighbours share a draw, and must not be alike
        assert abs(runs - (1 - share) ** 2) < 5 * sigma
    out.sum().backward()
    assert torch.equal(x.grad, out.detach()), "the gradient goes where the value went"


def test_dropout_is_seeded_and_goes_with_the_mode() -> None:
    x, layer = torch.randn(100), Dropout(0.5)
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(layer(x))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert layer.eval()(x) is x
    assert Dropout(0.0)(x) is x and torch.equal(Dropout(1.0)(x), torch.zeros(100))
