"""Mixing: the shares that were asked for, each source read through before it is read again."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.data.sampling import SmoothedMixing, SourceMixture, WeightedMixing

NAMES = ("a", "b", "c")


def mixture(mixing: Any, counts: list[int], mean: list[int]) -> tuple[SourceMixture, Any, Any]:
    """A mixture of sources with so many samples of so many tokens on average, in no order."""
    rng = np.random.default_rng(0)
    sources = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    lengths = rng.integers(1, 2 * np.array(mean)[sources])
    return SourceMixture.from_samples(mixing, sources, lengths, NAMES[: len(counts)]), sources, lengths


def test_exponent_smoothing() -> None:
    """q_i = p_i^alpha / sum_j p_j^alpha (Lample and Conneau, 2019, 3.1)."""
    sizes = np.array([1e6, 1e4, 1e2])
    for alpha in (0.0, 0.3, 0.7, 1.0):
        p = sizes / sizes.sum()
        np.testing.assert_allclose(SmoothedMixing(alpha=alpha).compute_shares(sizes), p**alpha / (p**alpha).sum())
    np.testing.assert_allclose(SmoothedMixing(alpha=0.3).compute_shares(np.array([10.0, 0.0])), [1, 0])


@pytest.mark.parametrize(
    "mixing",
    [
        WeightedMixing(weights=(5, 3, 2)),
        WeightedMixing(weights=(0.1, 0, 1)),
        SmoothedMixing(alpha=0.3),
        SmoothedMixing(alpha=0.7),
    ],
)
def test_shares_are_those_of_the_tokens_read(mixing: Any) -> None:
    found, sources, lengths = mixture(mixing, [4000, 900, 100], [10, 40, 20])
    sizes = np.bincount(sources, weights=lengths)
    wanted = mixing.compute_shares(sizes)
    np.testing.assert_allclose(found.shares, wanted, atol=1e-3)
    draws = found.draw_order(seed=3, round=2)
    tokens = np.bincount(sources[draws.samples], weights=lengths[draws.samples], minlength=3)
    # The number of samples is exact; which ones of a source a round holds is chance.
    for source in range(3):
        some = lengths[sources == source]
        sigma = some.std() * found.quotas[source] ** 0.5 / tokens.sum()
        assert abs(tokens[source] / tokens.sum() - wanted[source]) < 3 * sigma + 1e-3
    assert abs(tokens.sum() / sizes.sum() - 1) < 0.05, "a round is as long as an epoch"


def test_nothing_asked_is_everything_once() -> None:
    found, sources, _ = mixture(None, [40, 30, 7], [10, 40, 20])
    for number in range(3):
        draws = found.draw_order(1, number)
        assert sorted(draws.samples.tolist()) == list(range(len(sources)))
        assert (draws.epochs == number).all()
    assert found.count_epochs(2.5).tolist() == [2.5]


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_a_source_is_read_through_before_it_is_read_again(first: int, second: int, weight: float, seed: int) -> None:
    found, sources, _ = mixture(WeightedMixing(weights=(weight, 1 - weight)), [first, second], [5, 9])
    read = [found.draw_order(seed, number) for number in range(4)]
    for source, size in enumerate((first, second)):
        seen: dict[int, list[int]] = {}
        for draws in read:
            mine = sources[draws.samples] == source
            for sample, epoch in zip(draws.samples[mine].tolist(), draws.epochs[mine].tolist(), strict=True):
                seen.setdefault(epoch, []).append(sample)
        epochs = sorted(seen)
        assert epochs == list(range(len(epochs)))
        for epoch in epochs:
            assert len(seen[epoch]) == len({*seen[epoch]})
            assert len(seen[epoch]) == size or epoch == epochs[-1]
        total = sum(map(len, seen.values()))
        assert found.count_epochs(4)[source] == pytest.approx(total / size)


def test_a_round_is_a_function_of_its_number() -> None:
    found, _, _ = mixture(SmoothedMixing(alpha=0.5), [300, 40, 5], [10, 10, 10])
    again, _, _ = mixture(SmoothedMixing(alpha=0.5), [300, 40, 5], [10, 10, 10])
    late = found.draw_order(7, 3)
    assert again.draw_order(7, 3).samples.tolist() == late.samples.tolist()
    assert found.draw_order(8, 3).samples.tolist() != late.samples.tolist()
    assert found.draw_order(7, 4).samples.tolist() != late.samples.tolist()


def test_sources_are_mixed_throughout() -> None:
    found, sources, _ = mixture(SmoothedMixing(alpha=0.5), [3000, 400, 50], [10, 10, 10])
    draws = found.draw_order(0, 0)
    halves = np.array_split(sources[draws.samples], 2)
    one, two = (np.bincount(half, minlength=3) for half in halves)
    assert (np.abs(one - two) < 5 * np.sqrt(one + two)).all()


def test_the_small_are_read_often() -> None:
    found, _, _ = mixture(SmoothedMixing(alpha=0.0), [1000, 100, 10], [10, 10, 10])
    epochs = found.count_epochs(1)
    assert epochs[0] < 0.5 < 3 < epochs[1] < 5 < 30 < epochs[2]
    assert (found.quotas > 0).all()


def test_zero_is_never_and_little_is_sometimes() -> None:
    found, sources, _ = mixture(WeightedMixing(weights=(1, 0, 1e-9)), [100, 100, 100], [10, 10, 10])
    assert found.quotas.tolist()[1:] == [0, 1]
    assert not (sources[found.draw_order(0, 0).samples] == 1).any()


@pytest.mark.parametrize(
    ("mixing", "value"),
    [
        ({"weights": (1.0,)}, r"\b1\b.*\b2\b"),
        ({"weights": (1.0, -1.0)}, r"-1\.0"),
        ({"weights": (0.0, 0.0)}, r"\(0\.0, 0\.0\)"),
    ],
)
def test_bad_weights(mixing: Any, value: str) -> None:
    with pytest.raises(UsageError, match=value):
        mixture(WeightedMixing(**mixing), [3, 3], [5, 5])


def test_a_weight_on_nothing() -> None:
    with pytest.raises(DataError, match=r"'b'.*0\.5"):
        SourceMixture.from_samples(
            WeightedMixing(weights=(1, 1)), np.zeros(4, dtype=np.int64), np.ones(4, dtype=np.int64), ("a", "b")
        )


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_bad_exponents(alpha: float) -> None:
    with pytest.raises(UsageError, match=str(alpha)):
        SmoothedMixing(alpha=alpha)
