"""Batch normalization of one row per sequence: that of torch over the sequences alone, and exact in its edge cases."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pretune.core.types import Batch
from pretune.data.layout import batch as pack
from pretune.nn.batch_norm import BatchNorm, SequenceNorm
from pretune.nn.heads import get_running_statistics

IS_SEQUENCE = torch.tensor([True, True, False, True, False, True])


def make_pair(dtype: torch.dtype = torch.float64) -> tuple[SequenceNorm, nn.BatchNorm1d]:
    """Our norm and torch's, with the same weights."""
    torch.manual_seed(0)
    ours, theirs = BatchNorm().build(width=3), nn.BatchNorm1d(3)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(1.0)
    ours.load_state_dict({name: value for name, value in theirs.state_dict().items() if name != "num_batches_tracked"})
    return ours.to(dtype), theirs.to(dtype)


def run(norm: Callable[..., Tensor], x: Tensor, *arguments: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output, and the gradient of its input."""
    x = x.clone().requires_grad_()
    out = norm(x, *arguments)
    (gradient,) = torch.autograd.grad((out * torch.arange(1.0, 1 + out.numel()).view_as(out)).nan_to_num().sum(), x)
    return out.detach(), gradient


def test_equals_torch_over_the_sequences() -> None:
    """Outputs, gradients and running statistics, over several batches; what is in other cells does not matter."""
    ours, theirs = make_pair()
    for _ in range(3):
        x = torch.randn(6, 3, dtype=torch.float64) * 0.01 + 5
        for mine, reference in zip(run(ours, x), run(theirs, x), strict=True):
            torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-9)
        x[~IS_SEQUENCE] = torch.nan
        out = ours(x, IS_SEQUENCE)[IS_SEQUENCE]
        torch.testing.assert_close(out, theirs(x[IS_SEQUENCE]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x, IS_SEQUENCE)[IS_SEQUENCE], theirs(x[IS_SEQUENCE]))
    torch.testing.assert_close(ours(x[:1]), ours(x, IS_SEQUENCE)[:1], rtol=1e-12, atol=1e-12)  # alone as with others


@pytest.mark.parametrize("count", [0, 1])
def test_a_batch_without_variance_uses_the_running_statistics(count: int) -> None:
    norm, _ = make_pair()
    norm(torch.randn(4, 3, dtype=torch.float64) + 2)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    x, is_sequence = torch.randn(2, 3, dtype=torch.float64), torch.arange(2) < count
    out, gradient = run(norm, x, is_sequence)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    torch.testing.assert_close(out, norm.eval()(x), rtol=0, atol=0)
    assert gradient.isfinite().all() and gradient.any()


def test_a_step_that_is_skipped_leaves_the_statistics() -> None:
    norm = BatchNorm().build(width=3)
    x = torch.randn(4, 3)
    x[1, 2] = torch.inf
    assert not norm(x).isfinite().all()  # not hidden: the loop skips the step
    assert torch.equal(norm.running_mean, torch.zeros(3)) and torch.equal(norm.running_var, torch.ones(3))


def test_statistics_are_never_in_half_precision() -> None:
    """A mean of 5 in bfloat16 is wrong by more than these rows differ."""
    norm = BatchNorm(momentum=1.0).build(width=3)
    x = 5 + 1e-3 * torch.randn(64, 3)
    expected = norm(x)
    half = norm.to(torch.bfloat16)
    assert half.weight.dtype == torch.bfloat16 and half.running_mean.dtype == half.running_var.dtype == torch.float32
    torch.testing.assert_close(half.eval()(x), expected, rtol=0, atol=0.05)  # variances with 63 or 64 in the divisor
    assert norm.to(torch.float64).running_mean.dtype == torch.float64
    assert norm.to("meta").running_mean.is_meta


def test_names_of_the_statistics() -> None:
    model = nn.Sequential(nn.Linear(3, 3), BatchNorm().build(width=3), nn.BatchNorm1d(3))
    statistics = get_running_statistics(model)
    assert [*statistics] == ["1.running_mean", "1.running_var"]
    model.train()(torch.randn(5, 3))
    assert statistics["1.running_mean"].any()  # the buffers themselves, not copies


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (Batch.from_sequences([[1, 2], [3], [4, 5, 6]]), [True, False] * 3),
        (pack([[1, 2], [3], [4, 5, 6]]), [True, True, False, True, False]),
        (pack([[1, 2], [3, 4]]), [True, False, True, False]),  # fillers without a token
    ],
)
def test_sequences_are_marked(batch: Batch, expected: list[bool]) -> None:
    assert batch.mark_sequences().tolist() == expected
    assert batch.find_sequence_cells().tolist() == [cell for cell, is_sequence in enumerate(expected) if is_sequence]
