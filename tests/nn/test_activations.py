"""Custom gelu and dropout: values and gradients of torch, and the requested probabilities."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pretune.nn.layers import Dropout, compute_threshold, dropout, gelu, gelu_tanh, hash_bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gelu_is_torch_s(dtype: torch.dtype) -> None:
    x = torch.cat((torch.linspace(-40, 40, 4001), torch.tensor([0.0, -0.0, 1e-30, -1e30, 1e30]))).to(dtype)
    slope = torch.randn(len(x), dtype=dtype)
    actual = []
    for function in (gelu, F.gelu):
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        out.backward(slope)
        actual.append((out.detach(), leaf.grad))
    for mine, theirs in zip(*actual, strict=True):
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
    actual = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        actual.append(layer(x))
    assert torch.equal(actual[0], actual[1]) and not torch.equal(actual[0], actual[2])
    assert layer.eval()(x) is x
    assert Dropout(0.0)(x) is x and torch.equal(Dropout(1.0)(x), torch.zeros(100))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_a_compiler_is_given_for_a_gpu() -> None:
    """Forward and backward see one mask, every call another; gelu is torch's to the precision of bf16."""
    x = torch.randn(512, 768, device="cuda").to(torch.bfloat16).requires_grad_()
    drop = torch.compile(Dropout(0.1).train())
    masks = []
    for _ in range(3):
        out = drop(x)
        (slope,) = torch.autograd.grad(out, x, torch.ones_like(out))
        assert ((out != 0) | (x == 0)).equal((slope != 0) | (x == 0))
        masks.append(slope != 0)
        assert abs(masks[-1].double().mean().item() - 0.9) < 4 * (0.09 / x.numel()) ** 0.5
    assert abs((masks[0] & masks[1]).double().mean().item() - 0.81) < 0.003
    for mine, other in ((gelu, F.gelu), (gelu_tanh, lambda x: F.gelu(x, approximate="tanh"))):
        actual, expected = torch.compile(mine)(x), other(x.detach().double().requires_grad_())
        torch.testing.assert_close(actual.double(), expected, rtol=4e-3, atol=1e-4)
        wide = x.detach().double().requires_grad_()
        (slope,) = torch.autograd.grad(torch.compile(mine)(x).sum(), x)
        torch.testing.assert_close(
            slope.double(), torch.autograd.grad(other(wide).sum(), wide)[0], rtol=4e-3, atol=1e-3
        )


def test_the_hash_is_random() -> None:
    """Shares, neighbours at the distances that models have, and other seeds, each within four sigma."""
    index, size = torch.arange(1 << 20, dtype=torch.int32), 1 << 20
    torch.manual_seed(0)
    seeds = torch.randint(0, 2**31 - 1, (4, 2), dtype=torch.int32)
    kept = torch.stack([(hash_bits(index, *pair) >= compute_threshold(0.1)).double() - 0.9 for pair in seeds])
    assert (kept.mean(1).abs() < 4 * (0.09 / size) ** 0.5).all()
    for lag in (1, 2, 64, 768, 3072):
        assert ((kept[:, lag:] * kept[:, :-lag]).mean(1).abs() / 0.09 < 4 / (size - lag) ** 0.5).all()
    apart = torch.corrcoef(kept).fill_diagonal_(0)
    assert apart.abs().max() < 4 / size**0.5


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for compiled graphs on a GPU, run eagerly."""
    monkeypatch.setattr("pretune.nn.layers._is_fused", lambda x: True)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("mine", "kind"), [(gelu, "none"), (gelu_tanh, "tanh")])
def test_fused_gelu_is_torch_s_to_the_precision_of_its_type(mine: Any, kind: str, dtype: torch.dtype) -> None:
    x = torch.cat((torch.linspace(-30, 30, 3997), torch.tensor([0.0, -0.0, 1e-5]))).to(dtype)
    x = x.view(4, -1).t()  # not contiguous
    slope = torch.randn(x.shape).to(dtype)
    leaf, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    out, expected = mine(leaf), F.gelu(exact, approximate=kind)
    assert out.dtype == dtype
    close = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2e-6}
    torch.testing.assert_close(out.double(), expected, **close)
    out.backward(slope)
    expected.backward(slope.double())
    assert leaf.grad is not None and exact.grad is not None and leaf.grad.dtype == dtype
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=close["rtol"], atol=2e-5)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_hashed_dropout(dtype: torch.dtype) -> None:
    """One mask in both passes, another in every call, the same after the same seed; rows as they lie or not."""
    masks = []
    for seed in (0, None, 0):
        if seed is not None:
            torch.manual_seed(seed)
        x = torch.ones(300, 200, dtype=dtype).t().requires_grad_()
        out = dropout(x, 0.25)
        out.sum().backward()
        assert out.dtype == dtype and torch.equal(x.grad, out.detach())  # type: ignore[arg-type]
        assert set(out.detach().unique().tolist()) == {0.0, torch.tensor(4 / 3, dtype=dtype).item()}
        masks.append(out.detach() != 0)
        assert abs(masks[-1].double().mean().item() - 0.75) < 4 * (0.1875 / x.numel()) ** 0.5
    assert torch.equal(masks[0], masks[2])
    assert abs((masks[0] & masks[1]).double().mean().item() - 0.5625) < 0.01


def test_chances_at_their_ends() -> None:
    """Nothing is below the least threshold, and all but the largest numbers are below the largest."""
    index = torch.tensor([-(2**31), -1, 0, 2**31 - 1], dtype=torch.int32)
    assert (index >= compute_threshold(1e-12)).all()
    assert (index >= compute_threshold(0.5)).tolist() == [False, False, True, True]
    assert (index >= compute_threshold(1 - 1e-9)).tolist() == [False, False, False, True]


def test_numbers_of_elements_have_hashes_of_their_own() -> None:
    """Also those past the largest int32, which wrap around: they are as many as 32 bits have."""
    index = torch.cat([torch.arange(start, start + 4096) for start in (0, 2**31 - 2048, 2**32 - 4096)])
    wrapped = torch.where(index >= 2**31, index - 2**32, index).int()
    actual = hash_bits(wrapped, torch.tensor(12345, dtype=torch.int32), torch.tensor(678910, dtype=torch.int32))
    share = (actual >= compute_threshold(0.5)).double().mean().item()
    assert wrapped.unique().numel() == index.numel() and abs(share - 0.5) < 4 * 0.5 / index.numel() ** 0.5
    assert actual.unique().numel() > 0.999 * index.numel()
