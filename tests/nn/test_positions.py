"""Positions against their papers' formulas, written a second time and plainly."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretune.nn.positions import (
    Alibi,
    BandedScaling,
    LearnedEmbedding,
    LinearScaling,
    Position,
    RelativeBias,
    Rotary,
    Sinusoidal,
    rotate,
)

SIZES = {"width": 12, "heads": 4, "head_width": 6}


@pytest.mark.parametrize(
    "spec", [LearnedEmbedding(rows=9, offset=2), Sinusoidal(), Rotary(), Alibi(), RelativeBias(buckets=10)], ids=repr
)
def test_params(spec: Position) -> None:
    module = spec.build(**SIZES)
    assert sum(p.numel() for p in module.parameters()) == spec.params(width=12, heads=4)
    assert not list(module.buffers()), "nothing to save but learned tables"


def test_learned_reads_from_its_offset() -> None:
    spec = LearnedEmbedding(rows=9, offset=2)
    module = spec.build(**SIZES)
    positions = torch.tensor([0, 1, 6, 0])
    assert torch.equal(module(positions), module.table.weight[[2, 3, 8, 2]])
    assert spec.max_length == 7


@pytest.mark.parametrize("width", [12, 16, 7])
def test_sinusoidal(width: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d)), PE(pos, 2i + 1) = cos of the same."""
    module = Sinusoidal().build(width=width, heads=1, head_width=width)
    expected = [
        [(math.sin if c % 2 == 0 else math.cos)(position / 10000 ** (2 * (c // 2) / width)) for c in range(width)]
        for position in (0, 1, 5, 300)
    ]
    actual = module(torch.tensor([0, 1, 5, 300]))
    torch.testing.assert_close(actual.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-4)
    torch.testing.assert_close(actual[:3].double(), torch.tensor(expected[:3], dtype=torch.float64), rtol=0, atol=1e-6)


# Rotary


def turned(x: torch.Tensor, positions: list[int], frequencies: list[float]) -> torch.Tensor:
    """Channels (i, i + half) as one complex number, multiplied by e^(i position frequency)."""
    half = len(frequencies)
    out = x.double().clone()
    for n, position in enumerate(positions):
        turn = torch.polar(
            torch.ones(half, dtype=torch.float64), position * torch.tensor(frequencies, dtype=torch.float64)
        )
        pair = torch.complex(x[n, :, :half].double(), x[n, :, half : 2 * half].double()) * turn
        out[n, :, :half], out[n, :, half : 2 * half] = pair.real, pair.imag
    return out


@pytest.mark.parametrize(
    ("spec", "width", "count"),
    [(Rotary(), 8, 4), (Rotary(theta=500.0), 8, 4), (Rotary(fraction=0.25), 16, 2), (Rotary(fraction=0.5), 8, 2)],
    ids=repr,
)
def test_rotary_is_a_complex_product(spec: Rotary, width: int, count: int) -> None:
    positions = [0, 1, 7, 30]
    x = torch.randn(4, 3, width)
    actual = rotate(x, spec.build(width=1, heads=1, head_width=width)(torch.tensor(positions)))
    frequencies = [spec.theta ** (-2 * i / (2 * count)) for i in range(count)]
    torch.testing.assert_close(actual.double(), turned(x, positions, frequencies), rtol=0, atol=1e-5)
    assert torch.equal(actual[..., 2 * count :], x[..., 2 * count :])


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 500))
def test_rotary_scores_depend_on_distance_alone(i: int, j: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(1, 2, 8, generator=generator), torch.randn(1, 2, 8, generator=generator)
    module = Rotary(theta=100.0).build(width=1, heads=1, head_width=8)

    def score(a: int, b: int) -> torch.Tensor:
        return (rotate(q, module(torch.tensor([a]))) * rotate(k, module(torch.tensor([b])))).sum(-1)

    torch.testing.assert_close(score(i, j), score(i + shift, j + shift), rtol=0, atol=1e-3)
    torch.testing.assert_close(rotate(q, module(torch.tensor([i]))).norm(), q.norm(), rtol=1e-5, atol=0)


def test_linear_scaling_reads_positions_as_fractions() -> None:
    stretched = Rotary(scaling=LinearScaling(factor=4.0)).build(width=1, heads=1, head_width=8)
    plain = Rotary().build(width=1, heads=1, head_width=8)
    for part, other in zip(stretched(torch.tensor([12, 20])), plain(torch.tensor([3, 5])), strict=True):
        torch.testing.assert_close(part, other, rtol=0, atol=1e-6)


def test_banded_scaling_by_hand() -> None:
    """The reference's three branches: short waves kept, long ones divided, the rest blended."""
    banded = BandedScaling(factor=8.0, low=1.0, high=4.0, original=8192)
    frequencies = 1.0 / 500000.0 ** (torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    expected, kinds = [], set()
    for frequency in frequencies.tolist():
        wave = 2 * math.pi / frequency
        if wave < 8192 / 4.0:
            kinds.add("short")
            expected.append(frequency)
        elif wave > 8192 / 1.0:
            kinds.add("long")
            expected.append(frequency / 8.0)
        else:
            kinds.add("between")
            smooth = (8192 / wave - 1.0) / (4.0 - 1.0)
            expected.append((1 - smooth) * frequency / 8.0 + smooth * frequency)
    assert kinds == {"short", "long", "between"}
    torch.testing.assert_close(banded.scale_frequencies(frequencies), torch.tensor(expected, dtype=torch.float64))


# Biases


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        # The authors' released function for 12 heads: those of 8, then every second one of 16.
        (12, [2.0**-k for k in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]),
        (16, [2.0 ** (-k / 2) for k in range(1, 17)]),
        (6, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]),
        (1, [2.0**-8]),
    ],
)
def test_alibi_slopes(heads: int, slopes: list[float]) -> None:
    module = Alibi().build(width=1, heads=heads, head_width=1)
    distance = torch.tensor([[-3, 0], [5, -1]])
    actual = module(distance)
    expected = -torch.tensor(slopes)[:, None, None] * torch.tensor([[3.0, 0.0], [5.0, 1.0]])
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0)


def bucket(distance: int, *, buckets: int, far: int, both_ways: bool) -> int:
    """T5's buckets for one distance (key minus query), in whole numbers: no logarithm that could round."""
    first = 0
    if both_ways:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    near = buckets // 2
    if distance < near:
        return first + distance
    steps = buckets - near
    # The largest k with (distance / near)^steps >= (far / near)^k.
    k = max(k for k in range(steps + 60) if distance**steps * near**k >= near**steps * far**k)
    return first + min(near + k, buckets - 1)


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 12), (16, 64), (32, 256)])
def test_buckets(buckets: int, far: int, both_ways: bool) -> None:
    spec = RelativeBias(buckets=buckets, max_distance=far, both_ways=both_ways)
    module = spec.build(width=1, heads=3, head_width=1)
    distances = list(range(-300, 301))
    expected = [bucket(d, buckets=buckets, far=far, both_ways=both_ways) for d in distances]
    actual = module.compute_bucket(torch.tensor(distances))
    assert actual.tolist() == expected
    assert set(expected) == set(range(buckets)) - ({buckets // 2} if both_ways else set()), "0 is never 'after'"
    bias = module(torch.tensor([distances[:300], distances[301:]]))
    assert bias.shape == (3, 2, 300)
    assert torch.equal(bias[1, 1], module.table.weight[actual[301:], 1])
