"""Sampled softmax: the log-uniform sampler, its correction, gradients, and the exact softmax in the limit."""

import math

import torch
from torch import Tensor

from pretune.core.types import IGNORE_INDEX
from pretune.nn.loss import linear_cross_entropy
from pretune.nn.sampled_softmax import SampledSoftmax

VOCAB, WIDTH, ROWS = 60, 8, 24


def make_inputs(
    dtype: torch.dtype = torch.float32, *, vocab: int = VOCAB, width: int = WIDTH, rows: int = ROWS
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    states, weight, bias = (torch.randn(shape, dtype=dtype) for shape in ((rows, width), (vocab, width), (vocab,)))
    labels = torch.randint(0, vocab, (rows,))
    labels[3] = IGNORE_INDEX
    return states.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), labels


def test_many_samples_give_the_exact_loss() -> None:
    *inputs, labels = make_inputs()
    exact = linear_cross_entropy(*inputs, labels)
    sampled = SampledSoftmax(samples=20_000).compute_loss(*inputs, labels)  # all tokens, many times
    assert torch.allclose(sampled.sum, exact.sum, rtol=1e-5) and sampled.count == exact.count
    gradients = (torch.autograd.grad(loss.sum, inputs) for loss in (exact, sampled))
    for expected, gradient in zip(*gradients, strict=True):
        assert torch.allclose(gradient, expected, atol=1e-4)


def test_gradients_are_those_of_the_loss() -> None:
    *inputs, labels = make_inputs(torch.float64, vocab=12, width=3, rows=6)

    def compute(*parts: Tensor) -> Tensor:
        torch.manual_seed(1)
        return SampledSoftmax(samples=6).compute_loss(*parts, labels).sum  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(compute, inputs)


def test_the_loss_is_the_softmax_over_label_and_distinct_samples() -> None:
    states, weight, bias, labels = make_inputs()
    spec = SampledSoftmax(samples=10)
    torch.manual_seed(2)
    loss = spec.compute_loss(states, weight, bias, labels)
    torch.manual_seed(2)
    drawn = spec.draw(VOCAB, torch.device("cpu")).unique()
    total = 0.0
    for state, label in zip(states, labels.tolist(), strict=True):
        if label == IGNORE_INDEX:
            continue
        tokens = torch.tensor([label, *(token for token in drawn.tolist() if token != label)])
        chance = 1 - (1 - ((tokens + 2) / (tokens + 1)).log() / math.log(VOCAB + 1)) ** 10
        logits = weight[tokens] @ state + bias[tokens] - chance.log()
        total += float((logits.logsumexp(0) - logits[0]).detach())
    assert math.isclose(float(loss.sum), total, rel_tol=1e-5)


def test_the_sampler_is_log_uniform_and_seeded() -> None:
    spec, device = SampledSoftmax(samples=100_000), torch.device("cpu")
    torch.manual_seed(3)
    drawn = spec.draw(VOCAB, device)
    torch.manual_seed(3)
    assert torch.equal(drawn, spec.draw(VOCAB, device))
    ids = torch.arange(VOCAB)
    expected = ((ids + 2) / (ids + 1)).log() / math.log(VOCAB + 1)
    rates = torch.bincount(drawn, minlength=VOCAB) / 100_000
    assert ((rates - expected).abs() < 5 * (expected / 100_000).sqrt()).all() and math.isclose(
        expected.sum(), 1, rel_tol=1e-5
    )
