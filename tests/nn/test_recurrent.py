"""Recurrence over the ragged batch against torch's own, one sequence at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pretune.core.types import Batch
from pretune.data.layout import batch
from pretune.nn.lstm import AdditiveAttention, BiLSTM, order_by_step

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def made(lengths: list[int], width: int = 5) -> tuple[Batch, Tensor]:
    actual = batch([[1] * length for length in lengths])
    torch.manual_seed(len(lengths))
    return actual, torch.randn(actual.tokens.shape[0], width, dtype=torch.float64, requires_grad=True)


@settings(max_examples=15)
@given(lengths=LENGTHS, depth=st.integers(1, 2))
def test_every_sequence_is_read_as_if_alone(lengths: list[int], depth: int) -> None:
    rows, x = made(lengths)
    module = BiLSTM(hidden=4, depth=depth).build(width=5).double()
    out = module(x, rows)
    alone = [module.lstm(part.unsqueeze(1))[0].squeeze(1) for part in rows.split(x)]
    for ours, theirs in zip(rows.split(out), alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    weigh = torch.randn_like(out)
    gradient = torch.autograd.grad((out * weigh).sum(), x)[0]
    total = sum(((a * w).sum() for a, w in zip(alone, rows.split(weigh), strict=True)), start=x.new_zeros(()))
    torch.testing.assert_close(gradient, torch.autograd.grad(total, x)[0], rtol=0, atol=1e-12)


def test_filler_is_not_read_and_says_nothing() -> None:
    rows, x = made([3, 2, 2])
    filler = rows.sequence < 0
    assert filler.any()
    module = BiLSTM(hidden=4).build(width=5).double()
    out = module(x, rows)
    assert out[filler].eq(0).all() and out[~filler].ne(0).any()
    changed = torch.where(filler.unsqueeze(1), torch.nan, x)
    assert torch.equal(module(changed, rows), out)


@settings(max_examples=25)
@given(lengths=LENGTHS)
def test_the_order_of_reading_is_one_of_all_tokens(lengths: list[int]) -> None:
    rows, _ = made(lengths)
    order, sizes = order_by_step(rows)
    assert sorted(order.tolist()) == torch.nonzero(rows.sequence >= 0).squeeze(1).tolist()
    assert sizes.tolist() == [sum(length > step for length in lengths) for step in range(max(lengths))]
    assert rows.positions[order].tolist() == sorted(rows.positions[order].tolist())


@settings(max_examples=15)
@given(lengths=LENGTHS)
def test_attention_pools_each_sequence_by_a_softmax_of_its_own(lengths: list[int]) -> None:
    rows, x = made(lengths)
    pool = AdditiveAttention(hidden=3).build(width=5).double()
    pooled, weights = pool(x, rows), pool.compute_weights(x, rows)
    cells = [rows.sequence[start].item() for start, _ in rows.list_spans()]
    for cell, part, shares in zip(cells, rows.split(x), rows.split(weights), strict=True):
        scores = (torch.tanh(part @ pool.dense.weight.T + pool.dense.bias) @ pool.query.weight.T).squeeze(1)
        torch.testing.assert_close(shares, scores.softmax(0), rtol=0, atol=1e-12)
        torch.testing.assert_close(pooled[cell], scores.softmax(0) @ part, rtol=0, atol=1e-12)
    others = [cell for cell in range(rows.cells) if cell not in cells]
    assert pooled[others].eq(0).all()
    assert torch.isfinite(torch.autograd.grad(pooled.square().sum(), x)[0]).all()


def test_large_scores_overflow_nothing() -> None:
    rows, x = made([4, 2])
    pool = AdditiveAttention(hidden=2).build(width=5).double()
    nn.init.constant_(pool.query.weight, 1e5)
    assert torch.isfinite(pool(x, rows)).all()


@pytest.mark.parametrize("spec", [BiLSTM(hidden=6), BiLSTM(hidden=3, depth=3), AdditiveAttention(hidden=7)])
def test_parameters_are_counted(spec: BiLSTM | AdditiveAttention) -> None:
    assert spec.params(width=5) == sum(weight.numel() for weight in spec.build(width=5).parameters())
