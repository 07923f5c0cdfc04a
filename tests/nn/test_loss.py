"""The vocabulary loss against the plain one: values and gradients, in blocks, with ignored labels."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pretune.core.types import IGNORE_INDEX
from pretune.nn import loss
from pretune.nn.loss import linear_cross_entropy, linear_logprobs

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
    ),
]


def make(device: str, dtype: torch.dtype, rows: int = 150, vocab: int = 211, bias: bool = True) -> list[Tensor | None]:
    torch.manual_seed(3)
    states = torch.randn(rows, 24, dtype=dtype, device=device, requires_grad=True)
    weight = torch.randn(vocab, 24, dtype=dtype, device=device, requires_grad=True)
    shift = torch.randn(vocab, dtype=dtype, device=device, requires_grad=True) if bias else None
    labels = torch.randint(0, vocab, (rows,), device=device)
    labels[::7] = IGNORE_INDEX
    return [states, weight, shift, labels]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("block", [1, 1 << 30])
def test_equals_the_plain_loss(device: str, bias: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block and many (of 64 rows, the least) give the same sum, count and gradients, whatever comes after."""
    monkeypatch.setattr(loss, "BLOCK_BYTES", {"cpu": block, "cuda": block})
    dtype = torch.float64 if device == "cpu" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = False
    states, weight, shift, labels = make(device, dtype, bias=bias)
    actual = linear_cross_entropy(states, weight, shift, labels)
    inputs = [part for part in (states, weight, shift) if part is not None]
    mine = torch.autograd.grad(3 * actual.sum, inputs)
    expected = F.cross_entropy(F.linear(states, weight, shift), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    theirs = torch.autograd.grad(3 * expected, inputs)
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if device == "cpu" else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(actual.sum, expected, **tolerance)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    assert actual.count.item() == (labels != IGNORE_INDEX).sum().item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 150])
def test_logprobs_are_the_plain_ones(device: str, bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 64 rows, with gradients of any weights of the rows; no gradient of ignored ones."""
    monkeypatch.setattr(loss, "BLOCK_BYTES", {"cpu": 1, "cuda": 1})
    torch.backends.cuda.matmul.allow_tf32 = False
    states, weight, shift, labels = make(device, torch.float64, rows=rows, bias=bias)
    actual = linear_logprobs(states, weight, shift, labels)
    logits = F.linear(states, weight, shift)
    expected = logits.log_softmax(1).gather(1, labels.clamp(min=0)[:, None])[:, 0].where(labels != IGNORE_INDEX, 0.0)
    torch.testing.assert_close(actual, expected)
    if rows:
        inputs = [part for part in (states, weight, shift) if part is not None]
        weights = torch.linspace(-1, 2, rows, dtype=torch.float64, device=device)
        grads = [torch.autograd.grad((values * weights).sum(), inputs) for values in (actual, expected)]
        torch.testing.assert_close(*grads)


@pytest.mark.filterwarnings("ignore:mkldnn")  # a CPU without bf16 says that it falls back
@pytest.mark.parametrize("device", DEVICES)
def test_half_precision(device: str) -> None:
    """Under bf16 autocast gradients are as near to fp32 ones as those of the plain loss are."""
    states, weight, shift, labels = make(device, torch.float32, rows=400, vocab=1003)
    exact = F.cross_entropy(F.linear(states, weight, shift), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    truth = torch.autograd.grad(exact, [states, weight, shift])
    with torch.autocast(device, torch.bfloat16):
        actual = linear_cross_entropy(states, weight, shift, labels)
        plain = F.cross_entropy(
            F.linear(states, weight, shift).float(), labels, ignore_index=IGNORE_INDEX, reduction="sum"
        )
    mine = torch.autograd.grad(actual.sum, [states, weight, shift])
    other = torch.autograd.grad(plain, [states, weight, shift])
    assert actual.sum.dtype == torch.float32 and mine[1].dtype == torch.float32
    torch.testing.assert_close(actual.sum, plain, rtol=1e-3, atol=1e-3)
    for a, b, c in zip(mine, other, truth, strict=True):
        assert (a - c).norm() <= 1.5 * (b - c).norm() + 1e-6 * c.norm()


@pytest.mark.parametrize("trained", [(True, False, False), (False, True, False), (False, False, True)])
def test_what_is_frozen_has_no_gradient_and_costs_no_product(trained: tuple[bool, ...]) -> None:
    """LoRA has a frozen table: its gradient would be a third of the products, and as large as the table in fp32."""
    states, weight, shift, labels = make("cpu", torch.float64)
    reference = linear_cross_entropy(states, weight, shift, labels).sum
    inputs = [part for part in (states, weight, shift) if part is not None]
    expected = torch.autograd.grad(reference, inputs)
    for part, is_trained in zip(inputs, trained, strict=True):
        part.requires_grad_(is_trained)
    with FlopCounterMode(display=False) as counter:
        linear_cross_entropy(states, weight, shift, labels).sum.backward()
    for part, gradient, is_trained in zip(inputs, expected, trained, strict=True):
        assert (part.grad is not None) == is_trained
        if part.grad is not None:
            torch.testing.assert_close(part.grad, gradient)
    assert counter.get_total_flops() == 2 * 150 * 211 * 24 * (1 if trained[2] else 2)


def test_nothing_to_predict() -> None:
    states, weight, shift, labels = make("cpu", torch.float32)
    actual = linear_cross_entropy(states, weight, shift, torch.full_like(labels, IGNORE_INDEX))
    actual.sum.backward()
    assert actual.count.item() == 0 and actual.mean().item() == 0.0
    assert states.grad is not None and not states.grad.any()


@torch.no_grad()
def test_without_gradient() -> None:
    states, weight, shift, labels = make("cpu", torch.float32)
    expected = F.cross_entropy(F.linear(states, weight, shift), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    torch.testing.assert_close(linear_cross_entropy(states, weight, shift, labels).sum, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", [1, 1 << 30])
def test_what_is_right_is_counted_where_no_gradient_is_asked_for(
    device: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "BLOCK_BYTES", {"cpu": block, "cuda": block})
    states, weight, shift, labels = make(device, torch.float32)
    assert linear_cross_entropy(states, weight, shift, labels).correct is None
    with torch.no_grad():
        logits = F.linear(states, weight, shift)
        labels[1:60] = logits.argmax(1)[1:60]
        labels[::7] = IGNORE_INDEX
        actual = linear_cross_entropy(states, weight, shift, labels).correct
        assert actual is not None
        assert actual.item() == ((logits.argmax(1) == labels) & (labels != IGNORE_INDEX)).sum().item() > 40
        flat = linear_cross_entropy(torch.zeros_like(states), weight, None, labels).correct
        assert flat is not None and flat.item() == 0, "a tie is no success"
