"""The tiled kernels beside attention spelled out: on a GPU as they are, elsewhere by Triton's interpreter if there."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.nn.interpreted import CUDA, DEVICE, MARKS, able, elsewhere, passes  # isort: split

from pretune.nn import tiles as module
from pretune.nn.attention import Attention
from pretune.nn.attention_backends import can_backend_rotate
from pretune.nn.attention_mask import AttentionContext
from pretune.nn.positions import Rotary, rotate
from pretune.nn.tiles import attend_tiles, build_layout

pytestmark = MARKS
DTYPE = torch.bfloat16 if CUDA else torch.float32
SCALE = 0.3


class Case(NamedTuple):
    rows: int
    queries: int  # row lengths
    keys: int
    heads: int = 2
    key_heads: int = 2
    width: int = 16
    causal: bool = False
    window: int | None = None
    bias: bool = False
    dropout: float = 0.0
    kept: int = module.MAX_SCORE_BYTES  # bytes of the scores' gradients
    dtype: torch.dtype = DTYPE  # NOTE: the interpreter multiplies the bits of bf16
    apart: bool = False  # keys are of another side, though rows are as long
    terms: tuple[str, ...] = ()  # scores of distances
    rotary: bool = False

    @property
    def cross(self) -> bool:
        return self.apart or self.queries != self.keys

    @property
    def close(self) -> float:
        return 2e-6 if self.dtype == torch.float32 else 1e-2 if self.terms else 6e-3


CASES = {
    "short": Case(2, 48, 48),
    "odd width, causal, bias": Case(2, 40, 40, width=24, causal=True, bias=True),
    "grouped, long, bias": Case(1, 150, 150, key_heads=1, bias=True),
    "causal, long": Case(1, 200, 200, causal=True),
    "window": Case(1, 200, 200, window=7),
    "long, causal, bias, a row at a time": Case(2, 130, 130, causal=True, bias=True, kept=1),
    "across": Case(2, 24, 40),
    "across to a long source": Case(2, 24, 150),
    "one token": Case(3, 1, 1),
    "across, as long": Case(2, 20, 20, apart=True),
    "window, causal, fp16": Case(1, 33, 33, window=5, causal=True, dtype=torch.float16),
    "grouped, short, dropout, fp16": Case(1, 20, 20, heads=4, dropout=0.3, bias=True, dtype=torch.float16),
    "dropout, short": Case(2, 40, 40, dropout=0.3),
    "dropout, long, causal": Case(1, 150, 150, dropout=0.3, causal=True, bias=True),
    "distances, two blocks": Case(2, 70, 70, terms=("c2p", "p2c")),
    "content to position": Case(1, 150, 150, heads=1, key_heads=1, terms=("c2p",)),
    "position to content, odd width": Case(1, 40, 40, width=24, terms=("p2c",)),
    "distances, whole blocks, a row at a time": Case(3, 64, 64, heads=1, key_heads=1, terms=("c2p", "p2c"), kept=1),
    "distances, dropout": Case(2, 70, 70, terms=("c2p", "p2c"), dropout=0.3),
    "rotated": Case(2, 48, 48, rotary=True),
    "rotated, several blocks, causal, bias, dropout": Case(
        2, 100, 100, causal=True, bias=True, dropout=0.3, rotary=True
    ),
    "rotated, grouped, long": Case(1, 150, 150, heads=3, key_heads=1, rotary=True),
    "rotated, window, fp16": Case(1, 33, 33, width=32, window=5, dtype=torch.float16, rotary=True),
    "distances, one token": Case(2, 1, 1, terms=("c2p", "p2c")),
}


class Inputs:
    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case = case
        self.mine = torch.sort(torch.randint(-1, 3, (case.rows, case.queries)), -1)[0]
        self.mine[1:2] = -1  # a row of filler, where there are several
        self.theirs = self.mine
        if case.cross:  # no query without a key
            self.theirs = torch.randint(-1, 3, (case.rows, case.keys))
            self.theirs[:, :4] = torch.arange(-1, 3)
            self.theirs = self.theirs.sort(-1)[0]
        sizes = ((case.queries, case.heads), (case.keys, case.key_heads), (case.keys, case.key_heads))
        self.leaves = [torch.randn(case.rows * length, heads, case.width) for length, heads in sizes]
        if case.bias:
            self.leaves.append(torch.randn(case.heads, case.queries, case.keys))
        self.leaves += [torch.randn(2 * case.queries, case.heads, case.width) for _ in case.terms]
        self.leaves = [leaf.to(DEVICE, case.dtype).requires_grad_() for leaf in self.leaves]
        self.rotation: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
        if case.rotary:
            positions = torch.randint(0, 500, (case.rows * case.queries,))
            cos, sin = Rotary().build(width=0, heads=0, head_width=case.width)(positions)
            self.rotation = cos.to(DEVICE, case.dtype), sin.to(DEVICE, case.dtype)
        self.seed = torch.tensor((123456789, 987654321), dtype=torch.int32, device=DEVICE)
        self.weights = torch.randn(case.rows * case.queries, case.heads, case.width).to(DEVICE, case.dtype)

    def found(self) -> tuple[Tensor, ...]:
        case = self.case
        where = build_layout(
            self.mine.flatten().to(DEVICE), self.theirs.flatten().to(DEVICE) if case.cross else None, case.rows
        )
        q, k, v, *more = self.leaves
        named = dict(zip((*["bias"] * case.bias, *case.terms), more, strict=True))
        given = [*where[1:]], named.get("bias"), self.seed, named.get("c2p"), named.get("p2c"), *self.rotation
        out, *_ = module._attend(q, k, v, *given, case.causal, case.window or 0, SCALE, case.dropout)
        return out, *torch.autograd.grad(out, self.leaves, self.weights)

    def truth(self) -> tuple[Tensor, ...]:
        leaves = [leaf.detach().cpu().double().requires_grad_() for leaf in self.leaves]
        out = self._spelled_out(*leaves)
        return out, *torch.autograd.grad(out, leaves, self.weights.cpu().double())

    def _spelled_out(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        case = self.case
        named = dict(zip((*["bias"] * case.bias, *case.terms), more, strict=True))
        group = case.heads // case.key_heads
        if case.rotary:
            q, k = (rotate(x, tuple(table.cpu().double() for table in self.rotation)) for x in (q, k))
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        q, k, v = (x.view(case.rows, -1, case.heads, case.width).transpose(1, 2) for x in (q, k, v))
        distance = torch.arange(case.keys) - torch.arange(case.queries)[:, None]
        scores = q @ k.transpose(-1, -2)
        if "c2p" in named:
            scores = scores + torch.einsum("rhid,ijhd->rhij", q, named["c2p"][case.keys - 1 + distance])
        if "p2c" in named:
            scores = scores + torch.einsum("rhjd,ijhd->rhij", k, named["p2c"][case.keys - 1 + distance])
        scores = scores * SCALE + named.get("bias", 0.0)
        seen = self.mine[:, None, :, None] == self.theirs[:, None, None, :]
        seen = seen & (distance <= 0) if case.causal else seen
        seen = seen & (distance.abs() < case.window) if case.window else seen
        chances = scores.masked_fill(~seen, -1e30).softmax(-1)
        if case.dropout:
            chances = chances * self._kept() / (1 - case.dropout)
        return (chances @ v).transpose(1, 2).flatten(0, 1)

    def _kept(self) -> Tensor:
        """The kernel's own draw, in whole numbers."""
        case, most = self.case, 2**32 - 1
        place = torch.arange(case.rows * case.heads).view(case.rows, case.heads, 1, 1)
        first, second = (int(seed) & most for seed in self.seed.cpu())
        mixed = ((place + first) & most) * 0x9E3779B1 & most
        one = mixed ^ (mixed >> 15)
        two = ((second ^ mixed) * 0x85EBCA6B) & most
        two = two ^ (two >> 13)
        mine, theirs = (_bits(torch.arange(n), s) for n, s in ((case.queries, one), (case.keys, two)))
        x = ((mine[..., :, None] ^ theirs[..., None, :]) * 0x9E3779B1) & most
        x = ((x ^ (x >> 15)) * 0x846CA68B) & most
        return x >= round(case.dropout * 2**32)


def _bits(index: Tensor, seed: Tensor) -> Tensor:
    """Of every row, head and column."""
    most = 2**32 - 1
    x = index ^ seed[..., 0]
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & most
    x = ((x ^ (x >> 15)) * 0x846CA68B) & most
    return x ^ (x >> 16)


@elsewhere
def test_by_the_interpreter() -> None:
    passes(__file__, len(CASES) + 4, "-k", "not sides")


@able
@pytest.mark.parametrize("name", CASES)
def test_as_spelled_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Inputs(CASES[name])
    monkeypatch.setattr(module, "MAX_SCORE_BYTES", inputs.case.kept)
    for mine, other in zip(inputs.found(), inputs.truth(), strict=True):
        assert (mine.detach().cpu().double() - other).norm() < inputs.case.close * max(other.norm().item(), 1.0)


@able
def test_dropped_shares() -> None:
    kept = Inputs(CASES["dropout, long, causal"])._kept().double()
    assert abs(kept.mean() - 0.7) < 4 * (0.21 / kept.numel()) ** 0.5


@able
@pytest.mark.parametrize("apart", [False, True])
def test_parts_of_one_product(apart: bool) -> None:
    """Queries, keys and values that lie side by side, and a gradient that is not whole: as if each were whole."""
    torch.manual_seed(0)
    rows, length, heads, width = 2, 20, 2, 16
    both = [torch.randn(rows * length, 3 * heads * width).to(DEVICE, DTYPE).requires_grad_() for _ in range(2)]
    sequence = torch.arange(length).div(7, rounding_mode="floor").repeat(rows).to(DEVICE)
    where = build_layout(sequence, sequence if apart else None, rows)
    slope = torch.randn(heads, rows * length, width).to(DEVICE, DTYPE).transpose(0, 1)
    actual = []
    for whole in (False, True):
        first, second = both if apart else (both[0], both[0])
        q, k, v = (
            x.split(heads * width, 1)[part].view(-1, heads, width) for part, x in enumerate((first, second, second))
        )
        q, k, v = (x.contiguous() if whole else x for x in (q, k, v))
        out = attend_tiles(q, k, v, where, scale=SCALE)
        actual.append((out, *torch.autograd.grad(out, both[: 1 + apart], slope.contiguous() if whole else slope)))
    assert all(torch.equal(one, other) for one, other in zip(*actual, strict=True))


@able
def test_a_layer_leaves_its_rotation_to_the_kernel() -> None:
    torch.manual_seed(0)
    rows, length = 2, 24
    layer = Attention(heads=2, bias=False).build(width=32).to(DEVICE, DTYPE)
    x = torch.randn(rows * length, 32).to(DEVICE, DTYPE).requires_grad_()
    sequence = torch.arange(length).div(9, rounding_mode="floor").repeat(rows).to(DEVICE)
    positions = (torch.arange(rows * length) % length).to(DEVICE)
    cos, sin = Rotary().build(width=32, heads=2, head_width=16)(positions)
    rotation, row_ids = (cos.to(DTYPE), sin.to(DTYPE)), sequence.view(rows, 1, length, 1)
    where, seen = build_layout(sequence, None, rows), row_ids == row_ids.transpose(2, 3)
    tiles = AttentionContext(backend="tiles", rows=rows, blocks=where, rotation=rotation)
    eager = AttentionContext(backend="eager", rows=rows, mask=seen, rotation=rotation)
    assert can_backend_rotate(layer.project(x, None)[0], tiles, rotation)
    outs = [layer(x, context)[0] for context in (tiles, eager)]
    results = [(out, *torch.autograd.grad(out.square().sum(), (x, *layer.parameters()))) for out in outs]
    for actual, expected in zip(*results, strict=True):
        assert (actual - expected).norm() < (1e-5 if torch.float32 == DTYPE else 2e-2) * expected.norm()


class Started:
    """In place of a kernel: how many programs of it would be started."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grids.append(grid)
        return lambda *given, **options: None


@pytest.mark.parametrize(("length", "key_heads"), [(1, 2), (1, 1), (130, 2)])
def test_more_rows_than_the_sides_of_a_grid_are_long(
    length: int, key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million tokens in rows of 128 are 65,536 rows and heads: no side but the first may have so many programs."""
    started = {
        name: Started()
        for name in (
            "forward",
            "compute_deltas",
            "compute_key_gradients",
            "compute_query_gradients",
            "compute_row_gradients",
        )
    }
    monkeypatch.setattr(module, "kernels", SimpleNamespace(**started))
    monkeypatch.setattr(module, "MAX_SCORE_BYTES", 2**40)
    rows = 40_000 if length == 1 else 300
    q = torch.zeros(rows * length, 2, 1, requires_grad=True)
    k = torch.zeros(rows * length, key_heads, 1, requires_grad=True)
    where = build_layout(torch.zeros(rows * length, dtype=torch.long), None, rows)
    attend_tiles(q, k, k, where, scale=1.0).sum().backward()
    actual = {name: kernel.grids for name, kernel in started.items() if kernel.grids}
    expected = {"forward": [(where.forward_spans.shape[1] * rows * 2,)]}
    if length == 1 and key_heads == 2:
        expected |= {"compute_row_gradients": [(rows * 2,)]}
    else:
        expected |= {
            "compute_deltas": [(-(-length // 64) * rows * 2,)],
            "compute_query_gradients": [(where.backward_spans.shape[1] * rows * 2,)],
        }
        expected |= {"compute_key_gradients": [(where.key_spans.shape[1] * rows * key_heads,)]}
    assert actual == expected


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("shape", [(64, 128), (16, 512)])
def test_the_same_bits_every_time(shape: tuple[int, int]) -> None:
    rows, length = shape
    torch.manual_seed(0)
    x = torch.randn(rows * length, 3 * 12 * 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn(12, length, length, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    where = build_layout(torch.arange(length, device="cuda").div(30, rounding_mode="floor").repeat(rows), None, rows)
    first: list[Tensor] = []
    for _ in range(60):
        torch.cuda.manual_seed(1)
        q, k, v = (part.view(-1, 12, 64) for part in x.split(768, 1))
        out = attend_tiles(q, k, v, where, bias, scale=0.125, dropout=0.1)
        found: list[Any] = [out.detach(), *torch.autograd.grad(out, (x, bias), torch.ones_like(out))]
        first = first or found
        assert all(torch.equal(one, other) for one, other in zip(first, found, strict=True))
