"""Choosing by random rank: what is chosen is fair, exact, and each group's own affair."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.core.seed import mix_array
from pretune.data.sequences import Sequences, compute_offsets, compute_starts
from pretune.objectives import segment_sampling
from pretune.objectives.segment_sampling import (
    WordSpans,
    exclusive_cumsum,
    fill_budget,
    find_ordinary_tokens,
    round_randomly,
    sample_k,
    shuffle_groups,
    sum_groups,
    take_first,
)
from tests.selection import scale_examples

SIZES = st.lists(st.integers(0, 40), max_size=12).map(lambda sizes: np.array(sizes, dtype=np.int64))


def bits(count: int, seed: int = 0) -> np.ndarray:
    return mix_array((seed,), np.arange(count))


@given(sizes=SIZES, seed=st.integers(0, 99))
@settings(max_examples=scale_examples(60))
def test_each_group_is_permuted_by_itself(sizes: np.ndarray, seed: int) -> None:
    drawn = bits(int(sizes.sum()), seed)
    order = shuffle_groups(drawn, sizes)
    ends = compute_offsets(sizes)
    for group, (start, end) in enumerate(pairwise(ends.tolist())):
        assert sorted(order[start:end]) == list(range(start, end))
        alone = shuffle_groups(drawn[start:end], sizes[group : group + 1])
        assert (order[start:end] - start).tolist() == alone.tolist()
        assert alone.tolist() == sorted(range(end - start), key=lambda i: (drawn[start + i] >> np.uint64(40), i))


def test_many_groups_take_the_slow_way_to_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = np.array([5, 0, 70, 3])
    fast = shuffle_groups(bits(78), sizes)
    monkeypatch.setattr(segment_sampling, "_PLACE", 6)
    assert (shuffle_groups(bits(78), sizes) == fast).all()


def test_every_order_comes_equally_often() -> None:
    sizes = np.full(60_000, 3)
    order = shuffle_groups(bits(180_000), sizes) - np.repeat(compute_starts(sizes), sizes)
    _, counts = np.unique(order.reshape(-1, 3) @ [9, 3, 1], return_counts=True)
    assert len(counts) == 6 and np.abs(counts - 10_000).max() < 4 * np.sqrt(10_000 * 5 / 6)


@given(sizes=SIZES, seed=st.integers(0, 99))
@settings(max_examples=scale_examples(40))
def test_as_many_are_chosen_as_were_asked_for(sizes: np.ndarray, seed: int) -> None:
    counts = np.minimum(sizes, (np.arange(len(sizes)) * 7 + seed) % 41)
    chosen = sample_k(bits(int(sizes.sum()), seed), sizes, counts)
    assert len(np.unique(chosen)) == len(chosen) == counts.sum()
    owners = np.repeat(np.arange(len(sizes)), sizes)
    assert (np.bincount(owners[chosen], minlength=len(sizes)) == counts).all()


@pytest.mark.parametrize(("size", "count"), [(126, 19), (30, 1), (7, 1), (5, 5), (2000, 300), (12, 0)])
def test_the_short_way_chooses_the_same(size: int, count: int) -> None:
    """Only low keys are sorted, but in those few groups where they do not suffice."""
    sizes, counts = np.full(500, size), np.full(500, count)
    drawn = bits(500 * size)
    for group in (3, 8):  # all keys of these are high
        drawn[group * size : (group + 1) * size] |= np.uint64(15 << 60)
    found = sample_k(drawn, sizes, counts)
    assert (found == take_first(shuffle_groups(drawn, sizes), sizes, counts)).all()


def test_rounding_is_right_on_average_and_never_too_much() -> None:
    chance = np.random.default_rng(0).random(200_000)
    found = round_randomly(np.full(200_000, 2.3), chance)
    assert set(found) == {2, 3} and abs(found.mean() - 2.3) < 4 * np.sqrt(0.21 / 200_000)
    most = np.nextafter(1.0, 0)
    assert round_randomly(np.array([0.0, 5.0, 1.0]), np.array([most, most, most])).tolist() == [0, 5, 1]


@given(sizes=SIZES)
@settings(max_examples=scale_examples(40))
def test_sums_of_groups(sizes: np.ndarray) -> None:
    values = np.arange(int(sizes.sum())) % 5
    parts = np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else []
    assert sum_groups(values, compute_offsets(sizes)).tolist() == [part.sum() for part in parts]
    assert exclusive_cumsum(values, sizes).tolist() == [sum(part[:i]) for part in parts for i in range(len(part))]
    assert take_first(values, sizes, sizes // 2).tolist() == [v for p in parts for v in p[: len(p) // 2]]


def test_a_budget_is_met_on_average_and_exceeded_by_one_item_at_most() -> None:
    weights = np.tile([3, 1, 5, 2], 50_000)
    sizes, chance = np.full(50_000, 4), np.random.default_rng(1).random(50_000)
    for budget in (0.0, 0.4, 3.0, 3.5, 6.25, 11.0):
        taken = fill_budget(weights, sizes, np.full(50_000, budget), chance)
        sums = (weights * taken).reshape(-1, 4).sum(1)
        assert abs(sums.mean() - budget) < 4 * max(sums.std(), 1e-9) / np.sqrt(50_000) + 1e-9
        assert sums.max() < budget + 5
        assert (np.diff(taken.reshape(-1, 4).astype(int), axis=1) <= 0).all()  # in order, without gaps


def test_words_and_ordinary_tokens() -> None:
    sequences = Sequences(
        tokens=np.arange(12),
        offsets=np.array([0, 6, 6, 7, 12]),
        special=np.array([1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0], dtype=bool),
        words=np.array([1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0], dtype=bool),
    )
    index, sizes = find_ordinary_tokens(sequences)
    assert index.tolist() == [1, 2, 3, 4, 7, 8, 9, 10, 11] and sizes.tolist() == [4, 0, 0, 5]
    words = WordSpans.from_sequences(sequences)
    assert (words.start.tolist(), words.length.tolist(), words.sizes.tolist()) == ([1, 3, 7], [2, 2, 5], [2, 0, 0, 1])
    assert words.take(np.array([2, 0])).tolist() == [7, 8, 9, 10, 11, 1, 2]
    short = WordSpans.from_sequences(sequences, max_length=2)
    assert (short.start.tolist(), short.length.tolist(), short.sizes.tolist()) == (
        [1, 3, 7, 9, 11],
        [2, 2, 2, 2, 1],
        [2, 0, 0, 3],
    )
    with pytest.raises(UsageError, match="words=True"):
        WordSpans.from_sequences(Sequences(tokens=np.arange(2), offsets=np.array([0, 2])))


def test_nothing_to_choose_from() -> None:
    none = Sequences(tokens=np.arange(0), offsets=np.zeros(1, dtype=np.int64), words=np.zeros(0, dtype=bool))
    assert len(find_ordinary_tokens(none)[0]) == len(WordSpans.from_sequences(none, max_length=3).sizes) == 0
    assert len(sample_k(bits(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))) == 0
