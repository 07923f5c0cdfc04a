"""Products in fp8: scales, gradients beside a written-out reference, which layers they replace, and who may not."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.errors import ResourceError, UsageError
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.nn import fp8
from pretune.nn.attention import Attention, MultiHeadAttention
from pretune.nn.fp8 import FORWARD_DTYPE, GRADIENT_DTYPE, Fp8Linear, convert_linears, quantize
from tests.selection import keep_quick

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def random(*shape: int, seed: int = 0, size: float = 1.0) -> Tensor:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(inputs: int, outputs: int, *, bias: bool = True) -> Fp8Linear:
    torch.manual_seed(3)
    return Fp8Linear.from_linear(nn.Linear(inputs, outputs, bias=bias))


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What a tensor is after it was scaled to the largest number of a type, rounded, and scaled back, in fp64."""
    scale = {FORWARD_DTYPE: 448.0, GRADIENT_DTYPE: 57344.0}[dtype] / x.abs().max().double()
    return (x.double() * scale).to(dtype).double() / scale


# Rounding


@pytest.mark.parametrize(("dtype", "error"), [(FORWARD_DTYPE, 2**-4), (GRADIENT_DTYPE, 2**-3)])
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_the_largest_value_is_exact_and_the_others_are_near(dtype: torch.dtype, error: float, size: float) -> None:
    x = random(64, 48, size=size)
    values, scale = quantize(x, dtype)
    back = values.double() * scale.double()
    assert values.dtype == dtype and values.abs().float().max() == torch.finfo(dtype).max
    assert scale.shape == () and scale.dtype == torch.float32
    large = x.abs() > x.abs().max() * 1e-3  # normal numbers of both types
    assert ((back - x.double()).abs()[large] <= error * x.double().abs()[large] * 1.001).all()


def test_zeros_stay_zeros_and_what_is_not_finite_stays_so() -> None:
    values, scale = quantize(torch.zeros(16, 16), FORWARD_DTYPE)
    assert not values.float().any() and 0 < scale < 1e-30
    for bad in (float("nan"), float("inf")):
        x = random(32, 16)
        x[3, 5] = bad
        layer = made(16, 16)
        assert not layer(x).isfinite().all()  # so that the step is skipped
        y = layer(random(32, 16))
        y.backward(x[:, :16].bfloat16())
        assert layer.weight.grad is not None and not layer.weight.grad.isfinite().all()


# A layer beside the reference


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_rounded_factors(bias: bool, device: str) -> None:
    layer, x = made(64, 48, bias=bias).to(device), random(32, 64).to(device).bfloat16().requires_grad_()
    gradient = random(32, 48, seed=1, size=1e-6).to(device).bfloat16()
    y = layer(x)
    y.backward(gradient)
    assert y.dtype == torch.bfloat16 and layer.weight.grad is not None and x.grad is not None
    weight, rows, slope = (
        rounded(layer.weight.detach(), FORWARD_DTYPE),
        rounded(x.detach(), FORWARD_DTYPE),
        rounded(gradient, GRADIENT_DTYPE),
    )
    expected = rows @ weight.t() + (0 if layer.bias is None else layer.bias.detach().bfloat16().double())
    # The tensor cores keep 14 bits of a sum of the forward pass; bf16 has 8.
    torch.testing.assert_close(y.double(), expected, rtol=2**-8, atol=2e-3)
    torch.testing.assert_close(x.grad.double(), slope @ weight, rtol=2**-8, atol=2e-9)
    assert layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(layer.weight.grad.double(), slope.t() @ rows, rtol=1e-4, atol=1e-10)
    if layer.bias is not None:
        torch.testing.assert_close(layer.bias.grad, gradient.float().sum(0), rtol=1e-5, atol=1e-11)
    # It is not the product of the factors themselves, and not far from it.
    exact = F.linear(x.detach().float(), layer.weight.detach(), layer.bias)
    assert 0.005 < (y.float() - exact).norm() / exact.norm() < 0.06


def test_frozen_weights_and_inputs_have_no_gradient() -> None:
    layer, x = made(32, 16), random(16, 32)
    layer.weight.requires_grad_(False)
    layer(x).sum().backward()
    assert layer.weight.grad is None and layer.bias.grad is not None
    x.requires_grad_()
    layer.bias.requires_grad_(False)
    layer(x).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32


@pytest.mark.parametrize("tokens", [0, 1, 15, 40])
def test_other_numbers_of_tokens_are_multiplied_as_usual(tokens: int) -> None:
    layer, x = made(32, 16), random(tokens, 32)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def test_outside_training_products_are_as_usual() -> None:
    layer, x = made(32, 16), random(2, 16, 32)
    assert layer(x).shape == (2, 16, 16) and layer(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert torch.equal(layer.eval()(x), F.linear(x, layer.weight, layer.bias))


# Models

WIDE = {"width": 64, "depth": 2, "heads": 4, "vocab": 96}
MORE = {"llama3-1b": {"kv_heads": 2, "hidden": 96}, "t5-base": {"head_width": 16, "hidden": 96}}


@pytest.mark.parametrize(
    "name", keep_quick(["bert-base", "gpt2-small", "t5-base", "llama3-1b", "xlnet-base"], "t5-base")
)
def test_what_is_converted(name: str) -> None:
    """All linear layers of attention and feed-forward, of both stacks, and nothing else; names are kept."""
    model = build(resolve(name, {**WIDE, **MORE.get(name, {})}))
    names, weights = list(model.state_dict()), dict(model.named_parameters())
    count = convert_linears(model)
    converted = {path for path, module in model.named_modules() if isinstance(module, Fp8Linear)}
    assert count == len(converted)
    assert converted == {
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and path.split(".")[0] in ("encoder", "decoder")
        and path.split(".")[-1] in fp8.PRODUCTS
    }
    assert converted >= {f"{stack}.1.feedforward.up" for stack in ("encoder", "decoder") if getattr(model, stack)}
    assert list(model.state_dict()) == names
    assert all(parameter is weights[name] for name, parameter in model.named_parameters())


def test_layers_of_other_widths_stay() -> None:
    attention = MultiHeadAttention(Attention(heads=4, kv_heads=1, head_width=16), 64)
    narrow = MultiHeadAttention(Attention(heads=4, kv_heads=1, head_width=8), 64)
    assert convert_linears(attention) == 4 and convert_linears(narrow) == 2
    assert [type(layer) for layer in (narrow.q, narrow.k, narrow.v, narrow.out)] == [
        Fp8Linear, nn.Linear, nn.Linear, Fp8Linear,
    ]  # fmt: skip
    q, k, v = narrow.project(random(32, 64), None)
    assert not torch.equal(q.flatten(1), F.linear(random(32, 64), narrow.q.weight, narrow.q.bias))
    assert torch.equal(k.flatten(1), narrow.k(random(32, 64))) and v.shape == (32, 1, 8)


def test_projections_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = MultiHeadAttention(Attention(heads=4), 64)
    x = random(128, 64)
    expected = attention.project(x, None)
    convert_linears(attention)
    shapes = []
    real = Fp8Linear.multiply

    def multiply(layer: Fp8Linear, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shapes.append(tuple(weight.shape))
        return real(layer, x, weight, bias)

    monkeypatch.setattr(Fp8Linear, "multiply", multiply)
    monkeypatch.setattr("pretune.nn.attention.FUSE_MIN_TOKENS", 64)
    for part, usual in zip(attention.project(x, None), expected, strict=True):
        assert 0 < (part.float() - usual).norm() / usual.norm() < 0.06
    assert shapes == [(192, 64)]


@pytest.mark.slow
def test_compiled_it_is_the_same() -> None:
    layer, x = made(64, 32), random(32, 64)
    layer(x).float().square().mean().backward()
    gradient = layer.weight.grad
    layer.weight.grad = None
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    compiled(x).float().square().mean().backward()
    assert gradient is not None and layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, gradient, rtol=1e-5, atol=1e-7)


# Who may not


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResourceError, match=r"8\.9 or newer, this device is 'cpu'; use bf16"):
        fp8.check_device(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    for capability, is_able in (((8, 0), False), ((8, 9), True), ((9, 0), True), ((12, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, value=capability: value)
        if is_able:
            fp8.check_device(torch.device("cuda"))
        else:
            with pytest.raises(ResourceError, match="this device is 'NVIDIA A100'"):
                fp8.check_device(torch.device("cuda"))


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(UsageError, match="no linear layer of this model"):
        convert_linears(nn.Sequential(nn.Linear(64, 64)))
