"""Packing is best-fit decreasing, exactly, and never overfills a row on either side."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.data import packing as even
from pretune.data.packing import PACKING_ORDERS, balanced_fit, best_fit, exact_fit, pack
from pretune.data.sequences import Ints

ROOM, OTHER = 16, 12
lengths = st.lists(st.integers(1, ROOM), max_size=60).map(lambda found: np.array(found, dtype=np.int64))
pairs = st.lists(st.tuples(st.integers(1, ROOM), st.integers(1, OTHER)), max_size=60)


def one_by_one(given: Ints, room: int) -> list[int]:
    """Best-fit decreasing as the books have it; what is left in each row."""
    left: list[int] = []
    for length in sorted(given.tolist(), reverse=True):
        fitting = [number for number, free in enumerate(left) if free >= length]
        if fitting:
            left[min(fitting, key=left.__getitem__)] -= length
        else:
            left.append(room - length)
    return left


@given(lengths)
def test_it_is_best_fit_decreasing(given: Ints) -> None:
    rows = best_fit(given, ROOM)
    used = np.bincount(rows, weights=given)
    assert sorted(ROOM - used) == sorted(one_by_one(given, ROOM))


@given(st.integers(0, 2**32), st.sampled_from([40, 128]), st.integers(100, 3000))
def test_it_is_on_many_too(seed: int, room: int, count: int) -> None:
    given = np.random.default_rng(seed).geometric(3 / room, count).clip(1, room)
    assert sorted(room - np.bincount(best_fit(given, room), weights=given)) == sorted(one_by_one(given, room))


@given(lengths, st.integers(1, 6))
def test_no_row_has_too_many(given: Ints, most: int) -> None:
    rows = pack(given, ROOM, max_sequences=most)
    check(rows, given, ROOM, most)


@given(pairs, st.integers(1, 20))
def test_both_sides_have_room(given: list[tuple[int, int]], most: int) -> None:
    own = np.array([a for a, _ in given], dtype=np.int64)
    other = np.array([b for _, b in given], dtype=np.int64)
    rows = pack(own, ROOM, max_sequences=most, source=other, source_room=OTHER)
    check(rows, own, ROOM, most)
    check(rows, other, OTHER, most)
    assert (rows == pack(own, ROOM, max_sequences=most, source=other, source_room=OTHER)).all()


@given(pairs, st.integers(1, 20), st.sampled_from([1, 3, 8]), st.integers(1, 40))
def test_even_rows_never_overfill(given: list[tuple[int, int]], most: int, tries: int, kinds: int) -> None:
    """Whatever is looked at together; the same sequences in the same order give the same rows."""
    own, other = (np.array([pair[side] for pair in given], dtype=np.int64) for side in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(even, "MAX_LENGTH_PAIRS", kinds)
        rows = balanced_fit(own, ROOM, other, OTHER, most, tries=tries)
        assert (rows == balanced_fit(own, ROOM, other, OTHER, most, tries=tries)).all()
    check(rows, own, ROOM, most)
    check(rows, other, OTHER, most)


@given(pairs, st.integers(1, 6) | st.just(ROOM))
def test_even_rows_are_taken_where_they_are_fewer(given: list[tuple[int, int]], most: int) -> None:
    own, other = (np.array([pair[side] for pair in given], dtype=np.int64) for side in range(2))
    found = pack(own, ROOM, max_sequences=most, source=other, source_room=OTHER).max(initial=-1) + 1
    needed = max(own.sum() / ROOM, other.sum() / OTHER, len(own) / most)
    best = best_fit(own, ROOM, max_sequences=most, source=other, source_room=OTHER).max(initial=-1) + 1
    assert found <= best
    assert found <= 1.001 * needed + 1 or found <= balanced_fit(own, ROOM, other, OTHER, most).max(initial=-1) + 1


def test_even_rows_fill_both_sides_where_best_fit_does_not() -> None:
    """Translations, long and short answers, and texts parted anywhere: what each needs on the two sides differs."""
    rng = np.random.default_rng(0)
    source = np.concatenate((rng.geometric(1 / 14, 3000).clip(3, 60), rng.geometric(1 / 20, 3000).clip(4, 60)))
    target = np.concatenate((rng.geometric(1 / 14, 3000).clip(3, 60), np.full(3000, 3)))
    whole, point = np.full(2000, 120), rng.integers(1, 120, 2000)
    for own, other, least in ((target, source, 0.95), (point, whole - point, 0.9)):
        room = 240
        wide = int(np.ceil(room * other.sum() / own.sum()))
        rows = [pack(own, room, source=other, source_room=wide), best_fit(own, room, source=other, source_room=wide)]
        now, before = (own.sum() / (room * (row.max() + 1)) for row in rows)
        assert now > least > before


@given(lengths, st.integers(1, 6) | st.just(ROOM))
def test_exact_sums_never_overfill(given: Ints, most: int) -> None:
    for way in PACKING_ORDERS:
        check(exact_fit(given, ROOM, most, way), given, ROOM, most)


@given(lengths, st.integers(1, 6) | st.just(ROOM))
def test_the_best_of_all_ways(given: Ints, most: int) -> None:
    rows = pack(given, ROOM, max_sequences=most)
    check(rows, given, ROOM, most)
    needed = max(-(-int(given.sum()) // ROOM), -(-len(given) // most))
    others = [best_fit(given, ROOM, max_sequences=most), *(exact_fit(given, ROOM, most, way) for way in PACKING_ORDERS)]
    assert rows.max(initial=-1) <= max(needed, min(other.max(initial=-1) for other in others))


def test_exact_sums_fill_where_best_fit_leaves_gaps() -> None:
    """Stories of about 150 tokens, three to a row."""
    given = np.random.default_rng(0).normal(155, 40, 5000).astype(np.int64).clip(90, 500)
    fills = [given.sum() / ((rows.max() + 1) * 512) for rows in (best_fit(given, 512), pack(given, 512))]
    assert fills[0] < 0.97 < 0.99 < fills[1]


def test_hard_lengths_first_where_almost_none_is_short() -> None:
    """Stories of about 180 tokens: three are too many for a row, two leave a third of it empty."""
    rng = np.random.default_rng(0)
    given = np.concatenate((rng.normal(180, 35, 1900), rng.uniform(220, 512, 200))).astype(np.int64).clip(80, 512)
    ways = [best_fit(given, 512), *(exact_fit(given, 512, 5, way) for way in PACKING_ORDERS)]
    fills = [given.sum() / ((rows.max() + 1) * 512) for rows in ways]
    assert max(fills[:2]) < 0.95 < 0.97 < fills[2] < 0.975 < max(fills[3:])
    assert max(fills) == given.sum() / ((pack(given, 512, max_sequences=5).max() + 1) * 512)


def test_exact_sums_find_what_best_fit_misses() -> None:
    """Best fit puts a 4 beside the 5, which leaves 1; 5 + 3 + 2 and 4 + 4 + 2 leave nothing."""
    given = np.array([5, 4, 4, 3, 2, 2])
    assert len(one_by_one(given, 10)) == best_fit(given, 10).max() + 1 == 3
    assert np.bincount(exact_fit(given, 10, 10), weights=given).tolist() == [10, 10]


def check(rows: Ints, given: Ints, room: int, most: int) -> None:
    assert len(rows) == len(given)
    counts = np.bincount(rows)
    assert (counts > 0).all(), "no row is empty"
    assert (counts <= most).all() and (np.bincount(rows, weights=given) <= room).all()


def test_no_two_rows_could_be_one() -> None:
    """With two sides too: what is left open is never enough for what another row holds."""
    rng = np.random.default_rng(0)
    own, other = rng.integers(1, 60, 3000), rng.integers(1, 30, 3000)
    rows = pack(own, 128, source=other, source_room=64)
    used = np.stack((np.bincount(rows, weights=own), np.bincount(rows, weights=other)), axis=1)
    together = used[:, None] + used[None]
    fits = (together <= np.array([128, 64])).all(axis=2)
    assert fits[~np.eye(len(used), dtype=bool)].sum() == 0


def test_both_sides_are_filled_where_one_follows_from_the_other() -> None:
    """A source and a target of fixed proportions, as span corruption gives them."""
    n = np.random.default_rng(0).geometric(1 / 60, 20_000).clip(8, 512)
    source, target = n - n * 15 // 100 + n // 20 + 1, n * 15 // 100 + n // 20 + 2
    room, other = int(target.max()), int(source.max())
    rows = pack(target, room, source=source, source_room=other)
    count = rows.max() + 1
    assert source.sum() / (count * other) > 0.97 or target.sum() / (count * room) > 0.97


@pytest.mark.parametrize(
    ("given", "room", "source", "source_room", "value"),
    [
        ([1, 9, 2], 8, None, None, r"\b9\b"),
        ([1, 0], 8, None, None, r"\b0\b"),
        ([1, 2], 8, [1, 9], 8, r"\b9\b"),
        ([1, 2], 8, [0, 9], 9, r"\b0\b"),
    ],
)
def test_what_cannot_be_packed(
    given: list[int], room: int, source: list[int] | None, source_room: int | None, value: str
) -> None:
    side = None if source is None else np.array(source)
    with pytest.raises(UsageError, match=value):
        pack(np.array(given), room, source=side, source_room=source_room)
