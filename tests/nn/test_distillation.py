"""Losses of distillation against their formulas, written out row by row."""

import math

import pytest
import torch
import torch.nn.functional as F

from pretune.nn import loss
from pretune.nn.distillation import (
    compute_soft_binary_loss,
    compute_soft_loss,
    linear_soft_loss,
    sum_cosine_distances,
    sum_score_errors,
    sum_squared_errors,
)


def soften(logits: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in logits]
    return [power / sum(powers) for power in powers]


def test_soft_targets_are_a_scaled_divergence() -> None:
    student, teacher, temperature = [0.3, -1.0, 2.0], [1.5, 0.2, -0.7], 2.5
    p, q = soften(teacher, temperature), soften(student, temperature)
    expected = temperature**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    found = compute_soft_loss(torch.tensor([student, teacher]), torch.tensor([teacher, teacher]), temperature)
    torch.testing.assert_close(found, torch.tensor([expected, 0.0]))


def test_soft_targets_of_independent_labels() -> None:
    student, teacher, temperature = torch.tensor([[0.3, -4.0]]), torch.tensor([[1.5, 2.0]]), 3.0
    found = compute_soft_binary_loss(student, teacher, temperature)
    for k in range(2):
        p, q = (float(logits[0, k].div(temperature).sigmoid()) for logits in (teacher, student))
        expected = temperature**2 * (p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)))
        assert found[0, k].item() == pytest.approx(expected, rel=1e-5)


def test_states_are_compared_at_tokens_only() -> None:
    student, teacher = torch.randn(3, 4), torch.randn(3, 4)
    is_row = torch.tensor([True, False, True])
    errors = sum(sum((a - b) ** 2 for a, b in zip(student[i], teacher[i], strict=True)) / 4 for i in (0, 2))
    torch.testing.assert_close(sum_squared_errors(student, teacher, is_row), torch.as_tensor(errors))
    distances = sum(
        1 - float(student[i] @ teacher[i]) / (float(student[i].norm()) * float(teacher[i].norm())) for i in (0, 2)
    )
    assert sum_cosine_distances(student, teacher, is_row).item() == pytest.approx(distances, rel=1e-5)


def test_scores_are_compared_where_both_attend() -> None:
    """Two heads; the second query sees one key only, and the third is filler."""
    masked = torch.finfo(torch.float32).min
    student, teacher = torch.randn(1, 2, 3, 3), torch.randn(1, 2, 3, 3)
    teacher[0, :, 1, 1:], student[0, :, 1, 1:] = masked, masked
    student.requires_grad_()
    found = sum_score_errors(student, teacher, torch.tensor([True, True, False]))
    squares = (student - teacher).square()
    torch.testing.assert_close(found, squares[0, :, 0].mean() + squares[0, :, 1, 0].mean())
    found.backward()
    assert student.grad is not None and student.grad.isfinite().all() and not student.grad[0, :, 2].any()


@pytest.mark.parametrize("vocab", [13, 9])
def test_blocks_of_logits_equal_all_of_them(vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradients are those of torch's divergence over the common vocabulary."""
    monkeypatch.setitem(loss.BLOCK_BYTES, "cpu", 1)  # 64 rows at a time
    torch.manual_seed(0)
    student = [torch.randn(150, 8), torch.randn(11, 8), torch.randn(11)]
    student = [part.double().requires_grad_() for part in student]
    rows, table = torch.randn(150, 6).double(), torch.randn(vocab, 6).double()
    is_row, temperature = torch.arange(150) % 3 > 0, 2.0
    found = linear_soft_loss((student[0], student[1], student[2]), (rows, table, None), is_row, temperature)
    gradients = torch.autograd.grad(3 * found, student)
    common = min(vocab, 11)
    logits, targets = F.linear(*student)[is_row, :common] / temperature, (rows @ table.T)[is_row, :common] / temperature
    expected = temperature**2 * F.kl_div(logits.log_softmax(-1), targets.softmax(-1), reduction="sum")
    torch.testing.assert_close(found, expected)
    for gradient, reference in zip(gradients, torch.autograd.grad(3 * expected, student), strict=True):
        torch.testing.assert_close(gradient, reference)
