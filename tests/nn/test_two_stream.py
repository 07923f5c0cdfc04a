"""Two streams: who sees whom in an order, and that queries neither leak nor depend on the layout."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import pretune as pt
from pretune.core.errors import UsageError
from pretune.core.types import Targets
from pretune.nn.block import Norms
from pretune.nn.layers import Embed, FeedForward, LayerNorm
from pretune.nn.relative_attention import RelativeAttention, encode_distances, shift_scores
from pretune.nn.stack import OutputFlags
from pretune.nn.two_stream import TwoStream, TwoStreamBlock, TwoStreamStack

W = 24
ORDERS = [[0, 2, 3, 0, 1, 0], [3, 1, 2], [0], [0, 1, 0, 2], [1]]
"""The second and the last have no context at all."""


def stack(dropout: float = 0.0, depth: int = 3) -> TwoStreamStack:
    spec = TwoStream(
        depth=depth,
        embed=Embed(dropout=dropout),
        blocks=(
            TwoStreamBlock(
                attention=RelativeAttention(heads=4, dropout=dropout),
                feedforward=FeedForward(hidden=20, dropout=dropout),
                norms=Norms(post=LayerNorm()),
            ),
        ),
    )
    made = spec.build(width=W)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) / (3 if parameter.dim() > 1 else 1))
    return made.eval()


def lay(orders: list[list[int]], *, row: int = 9, slots: int = 0, segments: bool = True) -> pt.Batch:
    """Texts of these orders; tokens are numbers from 1 on, so that each has a vector of its own."""
    numbers = iter(range(1, 100))
    tokens = [[next(numbers) for _ in order] for order in orders]
    labels = [[1 if rank else -100 for rank in order] for order in orders]
    halves = [[int(2 * i >= len(order)) for i in range(len(order))] for order in orders]
    batch = pt.batch(tokens, row=row, labels=labels, segments=halves if segments else None)
    order = torch.zeros_like(batch.tokens)
    for (start, end), ranks in zip(batch.list_spans(), orders, strict=True):
        order[start:end] = torch.tensor(ranks)
    index = torch.cat((batch.targets.index, torch.zeros(slots, dtype=torch.long)))
    spare = torch.cat((batch.targets.labels, torch.full((slots,), -100)))
    return replace(batch, order=order, targets=Targets(index=index, labels=spare))


def vectors(batch: pt.Batch, seed: int = 0) -> Tensor:
    """A vector for every token, whatever its place."""
    table = torch.randn(100, W, generator=torch.Generator().manual_seed(seed))
    return table[batch.tokens]


@torch.no_grad()
def test_who_sees_whom() -> None:
    """Through any number of layers: a query lower ranks, the content of context the context; and visibly so."""
    model, batch = stack(), lay(ORDERS)
    x = vectors(batch)
    base = model(x, batch).states
    for j in (batch.sequence >= 0).nonzero().flatten().tolist():
        other = x.clone()
        other[j] += 1
        changed = (model(other, batch).states - base).abs().amax(-1) > 1e-5
        for i in (batch.sequence >= 0).nonzero().flatten().tolist():
            below = batch.order[j] < batch.order[i] or batch.order[j] == batch.order[i] == 0
            assert changed[i] == (batch.sequence[i] == batch.sequence[j] and below), (i, j)


@torch.no_grad()
def test_where_there_is_nothing_to_see() -> None:
    """The first of an order without context knows nothing: all such queries are alike, and none is NaN."""
    model, batch = stack(), lay(ORDERS)
    for ask in (OutputFlags(), OutputFlags(attention=True)):
        states = batch.split(model(vectors(batch), batch, flags=ask).states)
        torch.testing.assert_close(states[1][1], states[4][0])
        assert all(torch.isfinite(part).all() for part in states)
    weights = model(vectors(batch), batch, flags=OutputFlags(attention=True)).attention
    row, column = batch.list_spans()[4][0] // batch.length, batch.list_spans()[4][0] % batch.length
    assert all((layer[row, :, column] == 0).all() for layer in weights)


@torch.no_grad()
def test_the_content_is_an_encoder_without_an_order() -> None:
    model, batch = stack(), lay([[0, 0, 0], [0, 0]])
    plain = model(vectors(batch), replace(batch, order=None)).states
    torch.testing.assert_close(model(vectors(batch), batch).states, plain)


@torch.no_grad()
def test_packed_is_alone() -> None:
    """Rows, neighbours, spare target slots and the way the products are computed change nothing."""
    model = stack()
    first = lay(ORDERS)
    expected = torch.cat(first.split(model(vectors(first), first).states))
    for batch in (lay(ORDERS, row=6), lay(ORDERS, row=30), lay(ORDERS, slots=5)):
        for backend in ("rows", "eager"):
            actual = model(vectors(batch), batch, flags=OutputFlags(backend=backend)).states
            torch.testing.assert_close(torch.cat(batch.split(actual)), expected)


@torch.no_grad()
def test_one_segment_is_none() -> None:
    """It adds the same to every score of a query."""
    model, batch = stack(), lay(ORDERS, segments=False)
    one = replace(batch, segments=torch.zeros_like(batch.tokens))
    torch.testing.assert_close(model(vectors(batch), one).states, model(vectors(batch), batch).states)
    two = model(vectors(batch), replace(batch, segments=lay(ORDERS).segments)).states
    assert (two - model(vectors(batch), one).states).abs().max() > 0.1


def test_spare_slots_have_no_gradient() -> None:
    """All of them point at the first token, here a target: it counts once."""
    orders = [[1, 0, 2], [0, 1]]
    actual = []
    for slots in (0, 6):
        model, batch = stack(), lay(orders, slots=slots)
        model(vectors(batch), batch).states.square().sum().backward()
        actual.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, grad in actual[0].items():
        torch.testing.assert_close(actual[1][name], grad, msg=lambda m, n=name: f"{n}: {m}")


def test_dropout_keeps_the_queries_blind() -> None:
    """In training too, and only there, it changes what is said; what may not be seen stays unseen."""
    model, batch = stack(dropout=0.3).train(), lay(ORDERS)
    x, states = vectors(batch), []
    for change in (0.0, 1.0):
        torch.manual_seed(4)
        other = x.clone()
        other[1] += change  # rank 2 of the first text
        states.append(model(other, batch).states)
    changed = (states[0] - states[1]).abs().amax(-1) > 1e-6
    assert changed[2] and not changed[[0, 1, 3, 4, 5]].any()
    assert (model.eval()(x, batch).states - states[0]).abs().max() > 0.1


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::UserWarning")  # this processor has no bfloat16 of its own
def test_half() -> None:
    model, batch = stack(), lay(ORDERS)
    x = vectors(batch)
    expected = model(x, batch).states[batch.sequence >= 0]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(x, batch).states[batch.sequence >= 0]
    half = model.bfloat16()(x.bfloat16(), batch).states[batch.sequence >= 0]
    for found in (mixed, half):
        assert torch.isfinite(found).all()
        assert (found.float() - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize("length", [1, 2, 7])
def test_distances_find_their_keys(length: int) -> None:
    table, keys = encode_distances(length, 6, torch.device("cpu")), torch.arange(length)
    q = torch.randn(2, length, 6)
    alone = [[encode_distances(length, 6, torch.device("cpu"))[length - 1 - (i - j)] for j in keys] for i in keys]
    expected = torch.einsum("bid,ijd->bij", q, torch.stack([torch.stack(row) for row in alone]))
    torch.testing.assert_close(shift_scores(q @ table.T), expected)
    angle = (length - 1) / 10000 ** (torch.arange(0, 6, 2) / 6)
    torch.testing.assert_close(table[0], torch.cat((angle.sin(), angle.cos())))
    torch.testing.assert_close(table[length - 1], torch.tensor([0.0] * 3 + [1.0] * 3))  # no distance


def test_refusals() -> None:
    model, batch = stack(), lay(ORDERS)
    with pytest.raises(UsageError, match="targets"):
        model(vectors(batch), replace(batch, targets=None))
    with pytest.raises(UsageError, match="flex"):
        model(vectors(batch), batch, flags=OutputFlags(backend="flex"))
    with pytest.raises(UsageError):
        model(vectors(batch), batch, vectors(batch))
    for heads, width in ((5, 24), (3, 9)):
        with pytest.raises(UsageError, match=rf"\b{heads}\b.*\b{width}\b"):
            RelativeAttention(heads=heads).resolve_shape(width=width)
    with pytest.raises(UsageError, match=r"depth.*0"):
        replace(model.spec, depth=0)


class TestMemory:
    def test_two_segments_see_what_one_text_sees_of_its_past(self) -> None:
        """With a causal mask, a text in two segments gives the states of the whole text."""
        made = stack(depth=2)
        x = torch.randn(8, W)
        ranks = [[1, 2, 3, 4, 5, 6, 7, 8]]
        whole = made(x, lay(ranks, row=8, segments=False), flags=OutputFlags(hidden=True))
        memory = made.new_memory(8)
        content = []
        for part in (slice(0, 4), slice(4, 8)):
            batch = lay([ranks[0][part]], row=4, segments=False)
            out = made(x[part], batch, memory=memory, flags=OutputFlags(hidden=True))
            content.append(out.states)
        torch.testing.assert_close(torch.cat(content), whole.states, rtol=0, atol=1e-5)
        assert memory.tokens == 8

    def test_no_gradient_goes_into_it(self) -> None:
        made, memory = stack(depth=2), stack().new_memory(4)
        memory.layers = memory.layers[:2]
        first, second = (torch.randn(4, W, requires_grad=True) for _ in range(2))
        made(first, pt.batch([[1, 2, 3, 4]]), memory=memory)
        made(second, pt.batch([[5, 6, 7, 8]]), memory=memory).states.sum().backward()
        assert first.grad is None and second.grad is not None

    def test_rows_of_several_texts_are_refused(self) -> None:
        made = stack()
        for sequences in ([[1, 2], [3]], [[1, 2, 3], [4, 5]]):
            with pytest.raises(UsageError):
                made(torch.randn(6, W), pt.batch(sequences, row=3), memory=made.new_memory(4))
        memory = made.new_memory(4)
        made(torch.randn(4, W), pt.batch([[1, 2], [3, 4]]), memory=memory)
        with pytest.raises(UsageError, match=r"\b2\b.*\b1\b"):
            made(torch.randn(2, W), pt.batch([[1, 2]]), memory=memory)

    def test_other_models_and_lengths_have_none(self) -> None:
        with pytest.raises(UsageError, match="0"):
            stack().new_memory(0)
        from pretune.models.catalog import resolve

        model = pt.build(resolve("bert", {"width": 16, "depth": 1, "heads": 2, "vocab": 20}))
        with pytest.raises(UsageError, match="encoder"):
            model.new_memory(4)
